"""ApiVersions: the table of the listener that is asked, and the features of the cluster.

RULES    1. What has no row is not named; every listener has a table of its own.
         2. Features are levels of the cluster's metadata, and shown like those: that share.version is 1 does not say that share
            groups are served. Their API keys would.
         3. A version that is not known is answered in the oldest layout with this row and UNSUPPORTED_VERSION.
NOT HERE Which layout an unknown version gets (`request_dispatcher.py`).
"""

from __future__ import annotations

import re
from typing import Protocol

from broker.handlers.controller_api import Controller
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
from replication.metadata.feature_levels import features_for

_NEWEST = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class FeaturesController(Controller, Protocol):
    """A controller that knows which features are in force."""

    @property
    def features(self) -> dict[str, int]:
        """Their levels."""


class ApiVersionsHandler:
    """Answers ApiVersions for one listener."""

    def __init__(self, controller: FeaturesController) -> None:
        self._controller = controller
        self._router: Router | None = None

    def table_of(self, routes: list[Route]) -> Router:
        """The table of these rows and of this handler's own, which it will show."""
        self._router = Router([Route(ApiKey.API_VERSIONS, 0, _NEWEST, self.handle), *routes])
        return self._router

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Answer one ApiVersions."""
        assert self._router is not None
        version = context.api_version
        if version > _NEWEST:
            own = self._router.table[ApiKey.API_VERSIONS]
            row = ApiVersion(api_key=own.api_key, min_version=own.min_version, max_version=own.max_version)
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
