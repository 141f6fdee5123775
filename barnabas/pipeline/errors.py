"""What a user can mend, in one sentence; and how the sentence is found in what Spark says.

RULES    1. A job ends with `JobError` when somebody must do something; its text is one sentence that says what.
         2. Spark's exceptions are long; the cause that counts is looked for by name. What is not known stays the first
            line of its innermost cause.
         3. Where the JVM did not start, Spark does not know why, and its log does. Where it went away later, nobody says
            why: py4j finds its own connections broken.
         4. A mistake of our own is no `JobError`: it keeps its trace.
NOT HERE The exit code (`command.py`).
"""

from __future__ import annotations

import re

LONGEST = 400

_KNOWN = (
    (
        re.compile(r"UNRESOLVED DEPENDENCIES|unresolved dependency"),
        "Spark's jars are not here and could not be fetched: docs/pipeline.md says where they may lie.",
    ),
    (re.compile(r"No space left on device|Disk quota exceeded"), "The disk is full: nothing of this round was kept."),
    (
        re.compile(r"UnknownTopicOrPartitionException"),
        "A topic went away while it was read.",
    ),
    (
        re.compile(r"(?:Connect|Call)Exception.*\bspark://|All masters are unresponsive", re.DOTALL),
        "No Spark master answers at the address given with --master.",
    ),
    (
        re.compile(
            r"Failed to find (?:the )?data source: `?(?:delta|iceberg)|DELTA_CONFIGURE_SPARK_SESSION"
            r"|Cannot find catalog plugin class for catalog|No class found.*iceberg",
            re.IGNORECASE,
        ),
        "Spark has not the jars of the format that the archive is kept in: see docs/pipeline.md.",
    ),
    (
        re.compile(r"Failed to find data source: kafka|ClassNotFoundException: org\.apache\.spark\.sql\.kafka"),
        "Spark has no Kafka connector: start the session with barnabas.pipeline.session, or see docs/pipeline.md.",
    ),
    (
        re.compile(r"org\.apache\.kafka\.common\.errors\.TimeoutException|Timeout of \d+ms expired"),
        "The broker stopped answering.",
    ),
)
_OURS = re.compile(r"^barnabas\.pipeline\.[\w.]+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""What our own code said on a worker, or while Spark planned; Python's trace stands before it."""
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[\w.$]+\.)?(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)


_NO_JVM = "JAVA_GATEWAY_EXITED"
_STOPPED = "stopped SparkContext"
"""What stopped it stands in the log alone."""
_JVM_SAID = re.compile(
    r"^(?:Error: |Exception in thread .*?: )(?!Could not create|A fatal)(.+)$|^(Invalid .+)$", re.MULTILINE
)
"""Why a JVM ended before it had begun; `Could not create the Java Virtual Machine` follows."""
_JVM_LEFT = re.compile(
    r"An error occurred while calling [\w.]+|Error while (?:sending or receiving|sending|receiving)"
    r"|Answer from Java side is empty"
)
"""All that py4j says of a call whose JVM is no more: an answer of a JVM has a trace behind it."""


class JobError(Exception):
    """A job cannot go on; the message says why and what to do."""


def sentence_of(failure: BaseException, log: str = "") -> str:
    """What a failure of Spark comes down to; `log` is what its JVM said."""
    said = str(failure)
    if isinstance(failure, ConnectionError) or _JVM_LEFT.fullmatch(said.strip()):
        return "Spark's JVM went away, killed or out of memory: run the job again."
    if _NO_JVM in said:
        said = log
    heard = f"{said}\n{log}" if _STOPPED in said else said
    for pattern, sentence in _KNOWN:
        if pattern.search(heard):
            return sentence
    if ours := _OURS.findall(said):
        return str(ours[-1])
    if _NO_JVM in str(failure):
        why = _JVM_SAID.search(log)
        return f"Spark did not start: {(why[1] or why[2]).rstrip('.')[:LONGEST] if why else 'its JVM ended at once'}."
    causes = _CAUSE.findall(said)
    if causes:
        kind, words = causes[-1]
        return f"Spark failed with {kind}: {words.strip()[:LONGEST]}"
    lines = said.strip().splitlines()
    return f"Spark failed: {lines[0][:LONGEST] if lines else type(failure).__name__}"
