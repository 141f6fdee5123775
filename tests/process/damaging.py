"""Random damage to a stopped node, then a start, checked against the written records.

    python -m tests.process.damaging --count 200 [--seed N]        or: make damage COUNT=200

RULES    1. A trial stops a node, cleanly or not, damages some of its files, runs the doctor, starts the broker, reads
            everything, writes to every partition, stops, and starts again. Its seed repeats it.
         2. The broker starts and serves, or ends with exit status 1 and one sentence. It has no internal error, it does not
            end later, and its log contains every change to a partition's log.
         3. Served batches have a valid CRC and the records written at that offset; a second start serves the same, and the
            records written in between.
         4. A start checks what a crash may have damaged; damage elsewhere is served, as in Apache Kafka, and found by the
            client's CRC check. The doctor has reported it.
         5. Damage of a commit log costs no partition without damaged frames (tests/support/damaged_frames.py).
         6. The doctor predicts whether a start refuses. After `--repair` the directory starts, unless the doctor reported that
            a repair is not possible; after a complete repair it finds nothing.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka

from barnabas import Broker
from barnabas.embedded import BrokerError
from protocol.errors import ErrorCode, KafkaError
from protocol.records import crc_is_valid, headers, records
from storage.commitlog.commit_log import DIRECTORY
from tests.conformance.brokers import EARLIEST, offset_at
from tests.process.killing import committed_offsets
from tests.support.damaged_frames import partitions_at_risk
from tests.support.data_directory import PARTITIONS, Content, TopicPartition, damage, make_data_directory
from tests.support.loading import append_one, fetch_request
from tests.support.raw_client import RawClient
from tests.support.seeds import run_options
from tests.support.storage_engine import SMALL_FILES, default_engine
from tests.support.waiting import until

SENTENCE = re.compile(r"^barnabas: .*\.$")
FAULT = re.compile(r"Traceback|fault|internal error|CRITICAL")
WORDS = re.compile(r"WARNING|ERROR")
UNLOADABLE = re.compile(r"ERROR .* __consumer_offsets-\d+ cannot be loaded and is not coordinated: ")
"""A batch with a wrong CRC that is not read by a start may be one of theirs."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
    "log.retention.ms": -1,
    "log.retention.check.interval.ms": 1000,
    **SMALL_FILES,
}
_VERSION = 11
_MAX_BYTES = 1 << 16
_GROUP = "readers"
STARTS = {("trimmed", 0): 30}
"""Where logs begin that do not begin at 0; what was deleted may come back."""


class Served(NamedTuple):
    """The responses of a broker for one partition."""

    content: Content
    errors: set[str]


class Failed(AssertionError):
    """A rule is broken."""


def served_by(bootstrap: str) -> dict[TopicPartition, Served]:
    """All records, with CRCs checked."""
    return {place: _partition(bootstrap, place) for place in PARTITIONS}


def _partition(bootstrap: str, place: TopicPartition) -> Served:
    content: Content = {}
    errors: set[str] = set()
    offset = 0
    with RawClient(bootstrap) as client:
        while True:
            request = fetch_request(_VERSION, {(place[0], b"", place[1]): offset}, max_bytes=_MAX_BYTES)
            (data,) = client.ask(request, _VERSION).responses[0].partitions
            if (
                data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                and not offset
                and (offset := offset_at(client, place[0], EARLIEST, place[1]).offset)
            ):
                continue
            if data.error_code == ErrorCode.CORRUPT_MESSAGE:
                errors.add("CRC of a frame")
                offset += 1
                continue
            if data.error_code:
                errors.add(ErrorCode(data.error_code).name)
                return Served(content, errors)
            try:
                batches = headers(data.records or b"")
            except KafkaError:  # as for a client, which cannot know where the next batch begins
                errors.add(f"CRC of the records after {offset}")
                return Served(content, errors)
            if not batches:
                return Served(content, errors)
            for position, header in batches:
                if not crc_is_valid(data.records, position, header):
                    errors.add(f"CRC of the batch at {header.base_offset}")
                    offset += 1
                    continue
                if header.next_offset <= offset:
                    errors.add(f"batch at {header.base_offset} for offset {offset}")
                else:
                    for record in records(data.records, position, header, max_bytes=1 << 24):
                        content[record.offset] = _bytes(record.key), _bytes(record.value)
                offset = max(offset + 1, header.next_offset)


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def fetch_committed(bootstrap: str) -> None:
    """Fetches committed records from many offsets, whatever the responses are."""
    with RawClient(bootstrap) as client:
        for topic, partition in PARTITIONS:
            for offset in range(0, 61, 7):
                request = fetch_request(_VERSION, {(topic, b"", partition): offset})
                request.isolation_level = 1
                client.ask(request, _VERSION)


def write_to_all(bootstrap: str) -> dict[TopicPartition, str]:
    """Writes a record to every partition; returns the results."""
    with RawClient(bootstrap) as client:
        return {place: append_one(client, *place, b"written after the damage") for place in PARTITIONS}


def commit(bootstrap: str) -> None:
    """Fetches the committed offset of the group, rejoining it if necessary; commits an offset of another group."""
    place = confluent_kafka.TopicPartition("plain", 1)
    asker = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": _GROUP})
    until(lambda: committed_offsets(asker, [place]), "the committed offset is fetched")
    asker.close()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "afterwards"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("plain", 1, 4)], asynchronous=False)
    consumer.close()


def doctor(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    command = [sys.executable, "-m", "barnabas", "doctor", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


class Trial:
    """One seed."""

    def __init__(self, whole: Path, truth: dict[TopicPartition, Content], folder: Path, seed: int) -> None:
        self.truth = truth
        self.path = folder / f"data-{seed}"
        self.problems: list[str] = []
        self.outcome = "served"
        self.losses = ""
        """What the doctor knows to be lost: paths and sentences."""
        shutil.copytree(whole, self.path)
        self.done = damage(self.path, random.Random(seed))
        has_commit_log = (whole / DIRECTORY).exists()
        self.at_risk = partitions_at_risk(whole, self.path) if has_commit_log else set(PARTITIONS)
        self.broker = Broker(self.path, settings=SETTINGS)

    def run(self) -> None:
        """Runs the trial; `problems` lists the broken rules."""
        mended = self.path.with_name(self.path.name + "-mended")
        shutil.copytree(self.path, mended)
        foreseen = self._foreseen()
        try:
            self._start_and_use(foreseen)
        finally:
            self.broker.close()
        visit = doctor(mended, "--repair")
        self._no_fault(visit.stderr, "the repair")
        if not ("refuses" in visit.stdout or "a repair is not possible" in visit.stdout or visit.returncode == 2):
            self._start_repaired(mended, is_healthy=visit.returncode == 0)
        shutil.rmtree(mended)
        shutil.rmtree(self.path)

    def _foreseen(self) -> str:
        """The predicted effect of the start: "" or the reason of the refusal."""
        visit = doctor(self.path, "--json")
        self._no_fault(visit.stderr, "the doctor")
        if visit.returncode == 2:
            if not re.fullmatch(r"barnabas: .*\.\n", visit.stderr):
                self.problems.append(f"the doctor said {visit.stderr!r}")
            return visit.stderr
        output = [json.loads(line) for line in visit.stdout.splitlines()]
        self.losses = " ".join(f"{line['path']}: {line['text']}" for line in output if line.get("severity") == "loss")
        return " ".join(line["text"] for line in output if line["type"] == "refusal" and line["of"] == "start")

    def _no_fault(self, text: str, process: str) -> None:
        if FAULT.search(text):
            self.problems.append(f"{process} had an internal error: {text[-3000:]}")

    def _start_and_use(self, foreseen: str) -> None:
        try:
            self.broker.start()
        except BrokerError as error:
            self.outcome = f"refused: {error}"
            sentences = [line for line in self.broker.log().splitlines() if SENTENCE.match(line)]
            if len(sentences) != 1:
                self.problems.append(f"no start, and {len(sentences)} sentences: {error}")
            if not foreseen:
                self.problems.append(f"the doctor did not foresee: {error}")
            self._no_fault(self.broker.log(), "the broker")
            return
        if foreseen:
            self.problems.append(f"it starts, and the doctor foresaw {foreseen}")
        try:
            first = self._use()
            self.broker.stop()
        except (BrokerError, OSError, EOFError, confluent_kafka.KafkaException) as error:
            self.problems.append(f"it ended later: {error!r}\n{self.broker.log()[-2000:]}")
            self.outcome = "ended later"
        else:
            self._again(first)
        self._no_fault(self.broker.log(), "the broker")

    def _use(self) -> dict[TopicPartition, Served]:
        self._compare(served_by(self.broker.bootstrap))
        fetch_committed(self.broker.bootstrap)
        for place, code in write_to_all(self.broker.bootstrap).items():
            if code != "NONE":
                self.problems.append(f"a record to {place} is answered with {code}")
        if not UNLOADABLE.search(self.broker.log()):
            commit(self.broker.bootstrap)
        return served_by(self.broker.bootstrap)

    def _compare(self, found: dict[TopicPartition, Served]) -> None:
        lost = 0
        for place, (content, errors) in found.items():
            for error in sorted(errors):
                if not (self._is_lost(place) and error.startswith("CRC")):
                    self.problems.append(f"{place}: {error}")
            truth = self.truth[place]
            wrong = [offset for offset, record in content.items() if truth.get(offset) != record]
            if wrong:
                self.problems.append(f"{place}: something else at {wrong[:3]}: {content[wrong[0]]}")
            missing = [offset for offset in truth.keys() - content.keys() if offset >= STARTS.get(place, 0)]
            if (missing or errors) and place not in self.at_risk:
                self.problems.append(f"{place} has no damage and lost {missing[:3]}: {errors}")
            lost += len(missing)
        if lost:
            self.outcome = f"served without {lost} records"
            if not self.losses and not WORDS.search(self.broker.log()):
                self.problems.append(f"{lost} records are missing without a message: {self.broker.log()}")

    def _is_lost(self, place: TopicPartition) -> bool:
        """Whether the doctor has said that this partition lost records."""
        return re.search(rf"\b{place[0]}-{place[1]}\b", self.losses) is not None

    def _again(self, first: dict[TopicPartition, Served]) -> None:
        self.broker.start()
        second = served_by(self.broker.bootstrap)
        self.broker.stop()
        for place, (content, _) in first.items():
            if content != second[place].content:
                self.problems.append(f"{place}: a second start serves something else")

    def _start_repaired(self, path: Path, *, is_healthy: bool) -> None:
        self._check_healthy(path, is_healthy=is_healthy)
        with Broker(path, settings=SETTINGS) as broker:
            found = served_by(broker.bootstrap)
            broker.stop()
            self._no_fault(broker.log(), "the broker after the repair")
        self._check_healthy(path, is_healthy=is_healthy)
        for place, (content, errors) in found.items():
            wrong = [offset for offset, record in content.items() if self.truth[place].get(offset) != record]
            is_mended = is_healthy or not self._is_lost(place)  # sealed files of a commit log stay as they are
            if wrong or (errors and is_mended):
                self.problems.append(f"after the repair {place}: {errors} {wrong[:3]}")

    def _check_healthy(self, path: Path, *, is_healthy: bool) -> None:
        """After a complete repair the doctor finds nothing."""
        visit = doctor(path) if is_healthy else None
        if visit is not None and visit.returncode:
            self.problems.append(f"after the repair the doctor finds {visit.stdout[-2000:]}")


def main() -> None:
    """Runs trials, prints the results."""
    options = run_options("Random damage to a stopped node.", count=100)
    with tempfile.TemporaryDirectory(prefix="barnabas-damaged-") as folder:
        truth = make_data_directory(Path(folder, "whole"), default_engine())
        failed = 0
        for seed in range(options.seed, options.seed + options.count):
            trial = Trial(Path(folder, "whole"), truth, Path(folder), seed)
            try:
                trial.run()
            except Exception as error:  # noqa: BLE001  # the next trial has another seed
                trial.problems.append(f"{error!r}"[:1500])
            failed += bool(trial.problems)
            print(seed, trial.outcome, trial.done, flush=True)
            for problem in trial.problems:
                print("   PROBLEM", problem, flush=True)
    print(f"{options.count} trials, {failed} of them with problems")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
