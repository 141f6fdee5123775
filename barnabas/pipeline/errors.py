"""Errors that the user can fix, in one sentence; and how to find that sentence in Spark's output.

RULES    1. A job raises `JobError` when the user must act. Its text is one sentence that says what to do.
         2. Spark's exceptions are long. Known causes are found by pattern. An unknown cause is the first line of the
            innermost exception.
         3. If the JVM did not start, the cause is only in its log. If it ended later, py4j only reports broken connections.
         4. A bug is not a `JobError`: it keeps its traceback.
"""

from __future__ import annotations

import re

from barnabas.client.errors import ClientError

MAX_MESSAGE_CHARS = 400

_DELETED_RECORDS = re.compile(
    r"OffsetOutOfRangeException|Some data may have been lost because they are not available in Kafka"
)

_KNOWN = (
    (
        re.compile(r"UNRESOLVED DEPENDENCIES|unresolved dependency"),
        "Spark's jars are missing and could not be downloaded: see docs/pipeline.md.",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "The disk is full: free space and run the job again; what was not committed is repeated.",
    ),
    (
        re.compile(r"TopicAuthorizationException: Not authorized to access topics: \[(.+?)\]"),
        r"The broker denies Spark Read on topic \1: grant it with kafka-acls.",
    ),
    (
        re.compile(r"SaslAuthenticationException: (.+)"),
        r"The broker refused Spark's login: \1",
    ),
    (
        _DELETED_RECORDS,
        "The broker deleted records while Spark read them: run the job again.",
    ),
    (
        re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST"),
        "A file was deleted while Spark read it, perhaps by the compaction of an archive: run the job again.",
    ),
    (
        re.compile(r"UnknownTopicOrPartitionException"),
        "A topic was deleted while Spark read it: name existing topics and run the job again.",
    ),
    (
        re.compile(r"(?:Connect|Call)Exception.*\bspark://|All masters are unresponsive", re.DOTALL),
        "No Spark master answers at the address given with --master: start it, or use local[*].",
    ),
    (
        re.compile(
            r"Failed to find (?:the )?data source: `?(?:delta|iceberg)|DELTA_CONFIGURE_SPARK_SESSION"
            r"|Cannot find catalog plugin class for catalog|No class found.*iceberg",
            re.IGNORECASE,
        ),
        "Spark lacks the jars of the archive's format: see docs/pipeline.md.",
    ),
    (
        re.compile(r"Failed to find data source: kafka|ClassNotFoundException: org\.apache\.spark\.sql\.kafka"),
        "Spark has no Kafka connector: start the session with barnabas.pipeline.session, or see docs/pipeline.md.",
    ),
    (
        re.compile(r"org\.apache\.kafka\.common\.errors\.TimeoutException|Timeout of \d+ms expired"),
        "The broker stopped answering: run the job again when it is available.",
    ),
)
_OWN_ERROR = re.compile(r"^barnabas\.pipeline\.[\w.]+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""An exception of our code on a worker or during planning; Python's traceback precedes it."""
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[\w.$]+\.)?(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)


_NO_JVM = "JAVA_GATEWAY_EXITED"
_CONTEXT_STOPPED = "stopped SparkContext"
"""The reason is only in the log."""
_JVM_ERROR = re.compile(
    r"^(?:Error: |Exception in thread .*?: )(?!Could not create|A fatal)(.+)$|^(Invalid .+)$", re.MULTILINE
)
"""Why a JVM did not start; `Could not create the Java Virtual Machine` follows."""
_JVM_GONE = re.compile(
    r"An error occurred while calling [\w.]+|Error while (?:sending or receiving|sending|receiving)"
    r"|Answer from Java side is empty|[\w.]+ does not exist in the JVM"
)
"""py4j's whole message when the JVM is gone; an exception from a live JVM has a trace after it, and to a live JVM unknown names
are packages."""


class JobError(ClientError):
    """The job cannot continue; the message says why and what to do."""


def denied(where: str, right: str) -> JobError:
    """The error of a right that the user of the job does not have, such as `Read on topic flights`."""
    return JobError(f"The broker at {where} denies the job {right}: grant it with kafka-acls.")


def tells_of_deleted_records(failure: BaseException) -> bool:
    """Whether a failure of Spark says that the broker no longer has records that it should read."""
    return _DELETED_RECORDS.search(str(failure)) is not None


def describe_failure(failure: BaseException, log: str = "") -> str:
    """Returns one sentence for a failure of Spark; `log` is the JVM's log."""
    text = str(failure)
    if isinstance(failure, ConnectionError) or _JVM_GONE.fullmatch(text.strip()):
        return "Spark's JVM ended, killed or out of memory: run the job again."
    if _NO_JVM in text:
        text = log
    searched = f"{text}\n{log}" if _CONTEXT_STOPPED in text else text
    for pattern, sentence in _KNOWN:
        if found := pattern.search(searched):
            return found.expand(sentence)
    if own_errors := _OWN_ERROR.findall(text):
        return str(own_errors[-1])
    if _NO_JVM in str(failure):
        reason = _JVM_ERROR.search(log)
        cause = (reason[1] or reason[2]).rstrip(".")[:MAX_MESSAGE_CHARS] if reason else "its JVM ended at once"
        return f"Spark did not start: {cause}."
    causes = _CAUSE.findall(text)
    if causes:
        kind, message = causes[-1]
        return f"Spark failed with {kind}: {message.strip()[:MAX_MESSAGE_CHARS]}"
    lines = text.strip().splitlines()
    return f"Spark failed: {lines[0][:MAX_MESSAGE_CHARS] if lines else type(failure).__name__}"
