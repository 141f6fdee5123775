"""ApiVersions: the API table of the listener, and the features of the cluster.

RULES    1. The response contains the routes of this listener.
         2. Features are levels of the cluster's metadata; share.version 1 does not mean that share groups are supported:
            their API keys are not advertised.
         3. An unknown version gets UNSUPPORTED_VERSION and the range of ApiVersions in the oldest layout.
NOT HERE The layout for unknown versions (`request_dispatcher.py`).
"""

from __future__ import annotations

import re
from typing import Protocol

from broker.handlers.router import RequestContext, Route, Router
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from replication.controller.controller_client import Controller
from replication.metadata.feature_levels import features_for

NEWEST_API_VERSIONS = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class FeaturesController(Controller, Protocol):
    """A controller with the finalized features."""

    @property
    def features(self) -> dict[str, int]:
        """Finalized feature levels."""


class ApiVersionsHandler:
    """Handles ApiVersions for one listener."""

    def __init__(self, controller: FeaturesController) -> None:
        self._controller = controller
        self._router: Router | None = None

    def table_of(self, routes: list[Route]) -> Router:
        """Create the table of these routes and of this handler, which then advertises it."""
        self._router = Router([Route(ApiKey.API_VERSIONS, 0, NEWEST_API_VERSIONS, self.handle), *routes])
        return self._router

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Handle ApiVersions."""
        assert self._router is not None
        version = context.api_version
        if not 0 <= version <= NEWEST_API_VERSIONS:
            route = self._router.table[ApiKey.API_VERSIONS]
            row = ApiVersion(api_key=route.api_key, min_version=route.min_version, max_version=route.max_version)
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[row])
        if version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        if version >= 3:
            connection = context.connection
            connection.software_name = request.client_software_name
            connection.software_version = request.client_software_version
        levels = self._controller.features
        return ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersion(api_key=key, min_version=lowest, max_version=highest)
                for key, lowest, highest in self._router.advertised()
            ],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
                for name, (lowest, highest) in sorted(features_for(levels).items())
                if lowest > 0 or version >= 4  # KAFKA-17492: old clients cannot read a lowest level of 0
            ],
            finalized_features_epoch=self._controller.image.offset,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(levels.items())
            ],
        )
