"""The fast path of OffsetCommit: commits without metadata text, for existing partitions, without an object for each offset.

RULES    1. It returns None before any change for any other request, and for one that is refused: the handler
            (`group_offsets.py`) responds. The response to an accepted one is the handler's, byte for byte
            (docs/decisions/0015-fast-path-for-single-partition-requests.md).
         2. An append that fails at once has changed nothing: the handler repeats it, and responds.
NOT HERE The layout of the request (`protocol/frame_codecs/offset_commit_codec.py`), the decision
         (`coordinators/group_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.coordinators.classic.plain_commits import PlainCommits, TopicCommits, topic_commits
from broker.coordinators.group_coordinator import GroupCoordinator
from broker.coordinators.offset_manager import commit_response
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, reply_after
from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.codec import decode, encoder
from protocol.errors import ErrorCode
from protocol.frame_codecs.offset_commit_codec import (
    FIRST_VERSION_WITH_IDS,
    OffsetCommitRows,
    TopicRows,
    decode_request,
    encode_response,
)
from protocol.framing import Part, frame_response
from protocol.messages.groups import OffsetCommitRequest, OffsetCommitResponse
from protocol.primitives import ZERO_UUID
from replication.completion import Completion
from replication.metadata.image import MetadataImage


class OffsetCommitFastPath(AuthorizingHandlers):
    """The fast path of one version."""

    def __init__(
        self,
        version: int,
        runtime: CoordinatorRuntime[GroupCoordinator],
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
    ) -> None:
        self._version = version
        self._runtime = runtime
        self._image = image
        self._encode = encoder(OffsetCommitResponse, version)
        super().__init__(authorizer)

    def answer(
        self, context: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | Completion[list[Part]] | None:
        """The response to the request at `position`, now or later, or None."""
        request = decode_request(frame, position, self._version)
        if request is None or not self._may_read(context, Resource.GROUP, request.group_id):
            return None
        shard = self._runtime.find(request.group_id)
        commits = self._commits(context, request)
        if shard is None or commits is None:
            return None
        records = shard.coordinator.commit_plain(request, commits, self._version, context.mono_ms)
        if records is None:
            return None
        committed = shard.write_encoded(records)
        if committed.is_done and committed.error is not None:
            return None
        response = encode_response(context.correlation_id, request.topics)
        if committed.is_done:
            return response
        return reply_after(committed, response, partial(self._error_response, context, frame, position))

    def _commits(self, context: RequestContext, request: OffsetCommitRows) -> PlainCommits | None:
        """The commits of the request; None if the handler has to refuse one of them."""
        topics = []
        for topic in request.topics:
            commits = self._topic_commits(context, topic)
            if commits is None:
                return None
            topics.append(commits)
        return PlainCommits(request.group_id, topics)

    def _topic_commits(self, context: RequestContext, topic: TopicRows) -> TopicCommits | None:
        image = self._image()
        if self._version >= FIRST_VERSION_WITH_IDS:
            found = image.topics_by_id.get(topic.topic_id)
        else:
            found = image.topics_by_name.get(topic.name)
        if found is None or found.topic_id == ZERO_UUID or not self._may_read(context, Resource.TOPIC, found.name):
            return None
        commits = topic_commits(found.name, found.topic_id, topic.rows, context.wall_ms)
        return commits if found.partitions.keys() >= dict(commits.values).keys() else None

    def _may_read(self, context: RequestContext, resource_type: str, name: str) -> bool:
        """Whether the client is authorized; the handler logs a denial."""
        return self._is_authorized(context, Operation.READ, resource_type, name, log_denied=False)

    def _error_response(self, context: RequestContext, frame: bytearray, position: int, error: ErrorCode) -> list[Part]:
        """The response if the records are not committed."""
        context.metrics.count_errors([error])
        response = commit_response(decode(OffsetCommitRequest, self._version, frame, position), error)
        return frame_response(context.correlation_id, self._encode(response), flexible_header=True)
