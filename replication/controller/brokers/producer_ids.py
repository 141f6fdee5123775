"""AllocateProducerIds: blocks of producer ids for brokers (Kafka: ProducerIdControlManager).

RULES    1. No id is in two blocks: the image has the first id that is not allocated.
NOT HERE The ids of a block (`broker/coordinators/transactions/producer_id_manager.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages import quorum, stored_records
from replication.controller.decision_context import DecisionContext
from replication.state_machine import Decision

PRODUCER_ID_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1


def allocate_producer_ids(
    context: DecisionContext, request: quorum.AllocateProducerIdsRequest
) -> Decision[quorum.AllocateProducerIdsResponse]:
    """Decide on a block of producer ids."""
    broker = context.image.brokers.get(request.broker_id)
    code = ErrorCode.NONE
    if broker is None:
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
    elif broker.epoch != request.broker_epoch:
        code = ErrorCode.STALE_BROKER_EPOCH
    first = context.image.next_producer_id
    if code == ErrorCode.NONE and first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    if code != ErrorCode.NONE:
        return Decision([], quorum.AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0))
    record = stored_records.ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
    )
    reply = quorum.AllocateProducerIdsResponse(
        error_code=ErrorCode.NONE, producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK
    )
    return Decision([(record, 0)], reply)
