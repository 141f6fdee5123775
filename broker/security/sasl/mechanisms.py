"""The servers of a listener's SASL mechanisms.

RULES    1. A SCRAM credential is read from the current metadata image, so a change counts from the next authentication on.
NOT HERE The order of messages (`authenticator.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker.config.gssapi_configs import GSSAPI
from broker.config.oauth_configs import CallbackValidation, UnsecuredValidation, Validation
from broker.config.sasl_callbacks import load_callback
from broker.config.sasl_configs import OAUTHBEARER, PLAIN, SaslListener
from broker.security.sasl.callbacks import CallbackThreads, password_check, token_check
from broker.security.sasl.mechanism import SaslServer
from broker.security.sasl.oauthbearer import OAuthBearerServer, Validate
from broker.security.sasl.plain import PlainServer
from broker.security.sasl.scram import ScramCredential, ScramServer
from broker.security.sasl.token_credentials import TokenCredentials
from broker.security.sasl.unsecured_jwt import UnsecuredValidator
from protocol.messages.stored_records import UserScramCredentialRecord
from replication.controller.configs.scram_credentials import MECHANISMS
from replication.metadata.image import MetadataImage


class SaslUsers(NamedTuple):
    """Where a node's SASL users are, besides the settings."""

    image: Callable[[], MetadataImage]
    """The current metadata image."""
    new_nonce: Callable[[], str]
    """Random and printable."""
    tokens: TokenCredentials
    wall_ms: Callable[[], int]
    threads: CallbackThreads
    """For callbacks of other packages."""


def sasl_servers(config: SaslListener, users: SaslUsers) -> dict[str, Callable[[], SaslServer]]:
    """What creates the server of each enabled mechanism, in the order of the setting."""
    servers: dict[str, Callable[[], SaslServer]] = {
        mechanism: partial(_server, config, mechanism, users) for mechanism in config.mechanisms
    }
    if config.validation is not None:
        servers[OAUTHBEARER] = partial(OAuthBearerServer, _validator(config.validation, users))
    if config.plain_callback:
        check = password_check(users.threads, load_callback(config.plain_callback))
        servers[PLAIN] = partial(PlainServer, config.plain_passwords, check)
    if config.gssapi is not None:
        from broker.security.sasl.gssapi_server import Acceptor, GssapiServer  # noqa: PLC0415  # an extra

        servers[GSSAPI] = partial(GssapiServer, Acceptor(config.gssapi), users.threads)
    return servers


def _validator(settings: Validation, users: SaslUsers) -> Validate:
    if isinstance(settings, UnsecuredValidation):
        return UnsecuredValidator(settings, users.wall_ms)
    if isinstance(settings, CallbackValidation):
        return token_check(users.threads, load_callback(settings.name))
    from broker.security.sasl.jwt_validator import JwtValidator  # noqa: PLC0415  # an extra

    return JwtValidator(settings)


def _server(config: SaslListener, mechanism: str, users: SaslUsers) -> SaslServer:
    if mechanism == PLAIN:
        return PlainServer(config.plain_passwords)
    number, hash_name = MECHANISMS[mechanism]
    return ScramServer(
        hash_name,
        lambda user: scram_credential(users.image(), user, number),
        users.new_nonce(),
        partial(users.tokens.find, hash_name),
    )


def scram_credential(image: MetadataImage, user: str, mechanism: int) -> ScramCredential | None:
    """A user's credential for a mechanism, by its number."""
    record = image.opaque_records.get(("scram", user, mechanism))
    if not isinstance(record, UserScramCredentialRecord):
        return None
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
