"""ApiVersions: the table of the listener that is asked, and the features of the cluster.

RULES    1. What has no row is not named; every listener has a table of its own.
         2. A version that is not known is answered in the oldest layout with this row and UNSUPPORTED_VERSION.
NOT HERE Which layout an unknown version gets (`dispatch.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
from replication.image import MetadataImage

_NEWEST = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Answers ApiVersions for one listener."""

    def __init__(self, image: Callable[[], MetadataImage], features: dict[str, tuple[int, int]]) -> None:
        self._image = image
        self._features = features
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
        image = self._image()
        return ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersion(api_key=key, min_version=lowest, max_version=highest)
                for key, lowest, highest in self._router.advertised()
            ],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
                for name, (lowest, highest) in sorted(self._features.items())
                if lowest > 0 or version >= 4  # KAFKA-17492: old clients cannot read a lowest level of 0
            ],
            finalized_features_epoch=image.offset,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(image.features.items())
                if name in self._features
            ],
        )
