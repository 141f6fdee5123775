"""Tells the active controller of this node's controller, so that others know where it is (KIP-919).

RULES    1. It registers once for each process, in clusters whose metadata.version knows of controllers; again when the version
            allows to say more.
NOT HERE The decision (`replication/controller/brokers/registration.py`), which the active controller takes on itself without being asked.
"""

from __future__ import annotations

import logging
from typing import Final

from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.quorum import ControllerRegistrationResponse
from replication.controller.brokers.registration import registration_of_controller
from replication.controller.controller import OwnController
from replication.metadata.feature_levels import WITH_CONTROLLERS
from replication.metadata.image import MetadataImage
from replication.metadata_log.kraft_replica import Clock

_log = logging.getLogger("barnabas.controller")
_NEVER: Final = -1


class ControllerRegistration:
    """One process of one controller."""

    def __init__(self, node_id: int, own: OwnController, channel: ControllerChannel, clock: Clock) -> None:
        self._node_id = node_id
        self._own = own
        self._channel = channel
        self._clock = clock
        self._told_level = _NEVER

    def image_published(self, image: MetadataImage) -> None:
        """The metadata have moved on."""
        known = image.controllers.get(self._node_id)
        is_known = known is not None and known.incarnation_id == self._own.incarnation_id
        if self._told_level == _NEVER and is_known:
            self._told_level = image.metadata_version  # the active controller is this one
        if image.metadata_version < WITH_CONTROLLERS or image.metadata_version <= self._told_level:
            return
        self._told_level = image.metadata_version
        request = registration_of_controller(
            self._node_id, self._own.incarnation_id, self._own.endpoints, image.features
        )
        self._channel.submit(request, wall_ms=self._clock.wall_ms(), reply=_answered)


def _answered(answer: ControllerRegistrationResponse) -> None:
    if answer.error_code != ErrorCode.NONE:
        _log.warning("this controller is not registered: %s", answer.error_message)
