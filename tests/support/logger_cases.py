"""IncrementalAlterConfigs of loggers and the responses of Apache Kafka 4.3.1; nothing is changed."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.admin import IncrementalAlterConfigsRequest
from tests.support.admin_cases import INVALID_CONFIG, INVALID_REQUEST, NONE, Case
from tests.support.config_cases import APPEND, DELETE_SETTING, SET, SUBTRACT, TOPIC, Change, resource

LOGGER = 8


def _change(*changes: Change, name: str = "1", code: ErrorCode = NONE, message: str | None = None) -> Case:
    request = IncrementalAlterConfigsRequest(resources=[resource(LOGGER, name, *changes)], validate_only=True)
    return Case(request, [(name, code, message)])


def _refused(*changes: Change, message: str, name: str = "1", code: ErrorCode = INVALID_REQUEST) -> Case:
    return _change(*changes, name=name, code=code, message=message)


_INFO = ("root", SET, "INFO")
_NO_LEVEL = (
    "Cannot set the log level of root to {} as it is not a supported log level. "
    "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"
)
_ONCE = "Each resource must appear at most once."

LOGGERS = [
    _change(),
    *(_change(("root", SET, level)) for level in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")),
    *(
        _refused(("root", SET, level), code=INVALID_CONFIG, message=_NO_LEVEL.format(level))
        for level in ("debug", "OFF", "ALL", "WARNING", "", "5")
    ),
    _refused(("root", DELETE_SETTING, None), message="Removing the log level of the root logger is not allowed"),
    _refused(("root", APPEND, "INFO"), message="APPEND operation is not allowed for the BROKER_LOGGER resource"),
    _refused(("nope", SUBTRACT, "INFO"), message="SUBTRACT operation is not allowed for the BROKER_LOGGER resource"),
    *(
        _refused(change, code=INVALID_CONFIG, message="Logger nope does not exist!")
        for change in (("nope", SET, "INFO"), ("nope", SET, "BAD"), ("nope", DELETE_SETTING, None))
    ),
    _refused(_INFO, ("nope", SET, "INFO"), code=INVALID_CONFIG, message="Logger nope does not exist!"),
    _refused(_INFO, ("root", DELETE_SETTING, None), message="Error due to duplicate config keys"),
    _refused(("root", SET, None), message="Null value not supported for : root"),
    _refused(("root", SET, None), ("nope", SET, None), message="Null value not supported for : root, nope"),
    _refused(_INFO, name="", message="Node id must be an integer, but it is: "),
    _refused(_INFO, name="x", message="Node id must be an integer, but it is: x"),
    _refused(_INFO, name="2", message="Unexpected node id. Expected 1, but received 2"),
    Case(
        IncrementalAlterConfigsRequest(
            resources=[
                resource(LOGGER, "1", _INFO),
                resource(LOGGER, "1", _INFO),
                resource(TOPIC, "t1", ("retention.ms", SET, "5")),
            ],
            validate_only=True,
        ),
        [("1", INVALID_REQUEST, _ONCE), ("1", INVALID_REQUEST, _ONCE), ("t1", NONE, None)],
    ),
    Case(
        IncrementalAlterConfigsRequest(resources=[resource(LOGGER, "1", ("root", 9, "INFO"))], validate_only=True),
        [("1", ErrorCode.UNKNOWN_SERVER_ERROR, None)],
        [("1", INVALID_REQUEST, "Unknown operation type 9 is not allowed for the BROKER_LOGGER resource")],
        "an operation that does not exist is the client's mistake",
    ),
]
