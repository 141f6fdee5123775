"""Messages of idempotent and transactional producers."""

from __future__ import annotations

from protocol.schema import (
    Annotated,
    Int16,
    Int32,
    Int64,
    Message,
    Since,
)


class InitProducerIdRequest(Message, api_key=22, versions=(0, 6), flexible=2):
    """A producer id and epoch. Version 6 is not stable in Kafka 4.3: it is not advertised."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1
    enable2_pc: Annotated[bool, Since(6)] = False
    keep_prepared_txn: Annotated[bool, Since(6)] = False


class InitProducerIdResponse(Message, api_key=22, versions=(0, 6), flexible=2):
    """The answer to InitProducerIdRequest; producer id and epoch are -1 with an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16
    ongoing_txn_producer_id: Annotated[Int64, Since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Since(6)] = -1
