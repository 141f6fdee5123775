"""Runs Apache Kafka's tools against two brokers or clusters and compares their output; what differs between runs is masked."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.kafka_tools import KafkaTools, run_in_own_jvm

_TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "kafka-topics": f"{_TOOLS}TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-client-metrics": f"{_TOOLS}ClientMetricsCommand",
    "kafka-features": f"{_TOOLS}FeatureCommand",
    "kafka-cluster": f"{_TOOLS}ClusterTool",
    "kafka-metadata-quorum": f"{_TOOLS}MetadataQuorumCommand",
    "kafka-leader-election": f"{_TOOLS}LeaderElectionCommand",
    "kafka-reassign-partitions": f"{_TOOLS}reassign.ReassignPartitionsCommand",
    "kafka-log-dirs": f"{_TOOLS}LogDirsCommand",
    "kafka-get-offsets": f"{_TOOLS}GetOffsetShell",
    "kafka-delete-records": f"{_TOOLS}DeleteRecordsCommand",
    "kafka-acls": f"{_TOOLS}AclCommand",
    "kafka-transactions": f"{_TOOLS}TransactionsCommand",
    "kafka-consumer-groups": f"{_TOOLS}consumer.group.ConsumerGroupCommand",
    "kafka-groups": f"{_TOOLS}GroupsCommand",
    "kafka-producer-perf-test": f"{_TOOLS}ProducerPerformance",
    "kafka-consumer-perf-test": f"{_TOOLS}ConsumerPerformance",
    "kafka-verifiable-producer": f"{_TOOLS}VerifiableProducer",
    "kafka-verifiable-consumer": f"{_TOOLS}VerifiableConsumer",
    "transactional-message-copier": f"{_TOOLS}TransactionalMessageCopier",
    "kafka-console-consumer": f"{_TOOLS}consumer.ConsoleConsumer",
    "kafka-e2e-latency": f"{_TOOLS}EndToEndLatency",
    "kafka-replica-verification": f"{_TOOLS}ReplicaVerificationTool",
}

MEASURED = {"kafka-producer-perf-test", "kafka-consumer-perf-test", "kafka-e2e-latency"}
"""Tools that print measurements: numbers are masked."""
UNORDERED = {"kafka-acls", "kafka-verifiable-producer", "kafka-consumer-groups", "kafka-groups"}
"""Tools whose lines have no fixed order."""
READ_ONLY_WORDS = {"--describe", "--list", "--verify", "--dry-run", "describe", "list"}
"""Commands with these words change nothing."""
SEEN_WITHIN_S = 30
OWN_JVM = {"kafka-verifiable-producer"}
"""Tools that print their last lines when the JVM ends."""
BOOTSTRAP_OPTION = {"kafka-producer-perf-test": None, "transactional-message-copier": "--broker-list"}
"""Tools with another option than --bootstrap-server."""
Masks = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
MASKS: Masks = [
    (r"(?m)^\s+at .*\n", ""),  # where in the JVM's code an error was
    (r'"avg_throughput":[0-9.E-]+', "(a rate)"),
    (r'(?m)^.*"name":"partitions_assigned","partitions":\[\]}\n', ""),  # depends on the time of the assignment
    (r'(?m)^.*"stage":"ProcessLoop".*"totalProcessed":0,.*\n', ""),  # polls before the first record
    (r"\b[A-Za-z0-9_-]{22}\b", "(an id)"),
    (r"\b\d{13}\b", "(a time)"),
    (r'"time":"[^"]+"', "(a time)"),
    (r"(?m)^(1 +\ttx +\t.*\(a time\) +\t)\d+ +", r"\1(how long)"),
    (r"(?m)^  (?!root=)[\w.$() ]+=[A-Z]+ sensitive=false synonyms=\{\}\n", ""),  # logger names differ
    (r"(Epoch|HighWatermark): +\d+", r"\1"),
    (r"CONTROLLER://[a-z0-9.]+:\d+", "(the controller)"),
    (r"(?m)^1 +\t\(an id\)\t\d+ +", "1 (an id) (an offset)"),
    (r"\d+ ms ago +", "(ago)"),
    (r"(?m)^  barnabas\.[\w.]+=.*\n", ""),  # our own configs, in lines of their own and in a list
    (r",barnabas\.[\w.]+=[^,\n]*|(?<=Configs: )barnabas\.[\w.]+=[^,\n]*,?", ""),
]


class ToolRunner:
    """Runs tools against one broker or cluster."""

    def __init__(self, tools: KafkaTools, bootstrap: str, directory: Path, folder: Path, masks: Masks = ()) -> None:
        """`masks` are applied after MASKS."""
        self._tools = tools
        self._bootstrap = bootstrap
        self._directory = directory
        self._folder = folder
        self._masks = (*MASKS, *masks)

    def run(self, line: str) -> tuple[int, str]:
        """The exit code and the masked output of a tool."""
        name, *words = line.format(bootstrap=self._bootstrap, dir=self._folder).split()
        option = BOOTSTRAP_OPTION.get(name, "--bootstrap-server")
        at = [] if option is None else [option, self._bootstrap]
        verb = 1 if name == "kafka-cluster" else 0  # its options belong to the verb
        command = CLASSES[name], *words[:verb], *at, *words[verb:]
        outcome = run_in_own_jvm(*command) if name in OWN_JVM else self._tools.run(*command)
        return outcome.code, self._masked(name, f"{outcome.out}--- errors\n{outcome.err}")

    def _masked(self, name: str, text: str) -> str:
        text = text.replace(str(self._directory), "(the directory)")
        for number, address in enumerate(self._bootstrap.split(","), 1):
            text = text.replace(address, f"(broker {number})").replace(address.rpartition(":")[2], f"(port {number})")
        for pattern, mask in self._masks:
            text = re.sub(pattern, mask, text)
        if name in MEASURED:
            return re.sub(r"\d+", "9", text)
        return "\n".join(sorted(text.splitlines())) if name in UNORDERED else text


def difference(line: str, theirs: ToolRunner, ours: ToolRunner) -> str:
    """The difference of two outputs, or ""; a command that only reads is repeated for a while, until both show all changes."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while True:
        code, text = theirs.run(line)
        our_code, our_text = ours.run(line)
        if (code, text) == (our_code, our_text):
            return ""
        if not READ_ONLY_WORDS & set(line.split()) or time.monotonic() > deadline:
            return f"{line}\nKafka ({code}):\n{text}\nwe ({our_code}):\n{our_text}"


def write_json(folder: Path, files: Mapping[str, object]) -> Path:
    """Writes files that commands name with {dir}; the folder."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
