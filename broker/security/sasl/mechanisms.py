"""The servers of a listener's SASL mechanisms.

RULES    1. A SCRAM credential is read from the current metadata image, so a change counts from the next authentication on.
NOT HERE The order of messages (`authenticator.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.config.sasl_configs import PLAIN, SaslListener
from broker.security.sasl.mechanism import SaslServer
from broker.security.sasl.plain import PlainServer
from broker.security.sasl.scram import ScramCredential, ScramServer
from protocol.messages.stored_records import UserScramCredentialRecord
from replication.controller.configs.scram_credentials import MECHANISMS
from replication.metadata.image import MetadataImage


def sasl_servers(
    config: SaslListener, image: Callable[[], MetadataImage], new_nonce: Callable[[], str]
) -> dict[str, Callable[[], SaslServer]]:
    """What creates the server of each enabled mechanism, in the order of the setting."""
    return {mechanism: partial(_server, config, mechanism, image, new_nonce) for mechanism in config.mechanisms}


def _server(
    config: SaslListener, mechanism: str, image: Callable[[], MetadataImage], new_nonce: Callable[[], str]
) -> SaslServer:
    if mechanism == PLAIN:
        return PlainServer(config.plain_passwords)
    number, hash_name = MECHANISMS[mechanism]
    return ScramServer(hash_name, lambda user: scram_credential(image(), user, number), new_nonce())


def scram_credential(image: MetadataImage, user: str, mechanism: int) -> ScramCredential | None:
    """A user's credential for a mechanism, by its number."""
    record = image.opaque_records.get(("scram", user, mechanism))
    if not isinstance(record, UserScramCredentialRecord):
        return None
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
