"""Registers this node's controller with the active controller, for its endpoints (KIP-919).

RULES    1. It registers once per process if the metadata.version supports it; again if a new version adds fields.
NOT HERE The decision (`replication/controller/brokers/registration.py`); the active controller registers itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.quorum import ControllerRegistrationResponse
from replication.completion import Completion
from replication.controller.brokers.registration import controller_registration_request
from replication.controller.controller import LocalController
from replication.metadata.feature_levels import WITH_CONTROLLERS
from replication.metadata.image import MetadataImage

_log = logging.getLogger("barnabas.controller")
_NEVER: Final = -1


@dataclass(eq=False)
class ControllerRegistration:
    """The registration of one controller process."""

    _node_id: int
    _local: LocalController
    _channel: ControllerChannel
    _registered_level: int = field(default=_NEVER, init=False)

    def image_published(self, image: MetadataImage) -> None:
        """A new metadata image is published."""
        known = image.controllers.get(self._node_id)
        is_known = known is not None and known.incarnation_id == self._local.incarnation_id
        if self._registered_level == _NEVER and is_known:
            self._registered_level = image.metadata_version  # this is the active controller
        if image.metadata_version < WITH_CONTROLLERS or image.metadata_version <= self._registered_level:
            return
        self._registered_level = image.metadata_version
        request = controller_registration_request(
            self._node_id, self._local.incarnation_id, self._local.endpoints, image.features
        )
        self._channel.submit(request).then(_on_response)


def _on_response(done: Completion[ControllerRegistrationResponse]) -> None:
    response = done.result()
    if response.error_code != ErrorCode.NONE:
        _log.warning("the registration of this controller failed: %s", response.error_message)
