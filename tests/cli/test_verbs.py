"""The verbs consume and produce as users run them: exit codes, signals, closed pipes, what is imported and asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from barnabas import Broker
from barnabas.cli.offset_ranges import parse_range, resolve
from barnabas.cli.partition_choice import PartitionChoice
from barnabas.client.cluster import Cluster
from barnabas.client.record_reader import RecordReader
from barnabas.client.record_writer import RecordWriter
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import Api, Fields
from tests.cli.running import COMMAND, TIMEOUT_S, barnabas, running, values
from tests.cli.test_copy import KEEP
from tests.support import hostile_records
from tests.support.loading import create
from tests.support.raw_client import RawClient

WORDS = [b"zero", b"one", b"two", b"three", b"four"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=KEEP) as running:
        with RawClient(running.bootstrap) as client:
            create(client, "words", "empty")
            sent = [(1_700_000_000_000 + at, b"k%d" % at, word, (("n", b"%d" % at),)) for at, word in enumerate(WORDS)]
            hostile_records.write(client, "words", 0, sent)
        yield running


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "zero one two three four"),
        (["-o", "2"], "two three four"),
        (["-o", "+1:-1"], "one two three"),
        (["-o", "-2"], "three four"),
        (["-o", ":2"], "zero one"),
        (["-o", "end"], ""),
        (["-o", "99"], ""),
        (["-o", "@1700000000001:1700000000003"], "one two"),
        (["-o", "@-1h"], ""),
        (["-n", "2"], "zero one"),
        (["-p", "0"], "zero one two three four"),
        (["--grep", "o$"], "zero two"),
        (["--grep", "o", "-n", "2"], "zero one"),
        (["--grep-key", "[34]"], "three four"),
        (["--grep-header", "n=2"], "two"),
        (["-n", "1", "-F"], "zero"),
        (["-o", "1:3", "-F"], "one two"),
    ],
)
def test_a_range_and_filters_choose_records(broker: Broker, arguments: list[str], expected: str) -> None:
    assert values(broker.bootstrap, "words", *arguments) == expected.split()


def test_topics_are_chosen_by_expressions(broker: Broker) -> None:
    assert values(broker.bootstrap, "-r", "w.*", "emp.+") == [word.decode() for word in WORDS]


def test_expressions_match_no_internal_topics(broker: Broker) -> None:
    """A group that read __consumer_offsets printed a record for each of its own commits, for ever."""
    at = ("-b", broker.bootstrap)
    assert barnabas("groups", "reset", "made", *at, "--topic", "words", "--to-earliest", "--execute").returncode == 0
    assert barnabas("consume", *at, "__consumer_offsets", "-n", "1").stdout.count(b"\n") == 1
    done = barnabas("consume", *at, "-r", "__consumer.+")
    assert (done.returncode, done.stderr[:27]) == (1, b"barnabas: No topic matches:")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["consume", "nowhere"], 1, "There is no topic nowhere"),
        (["consume", "words", "-p", "7"], 1, "There is no partition 7"),
        (["consume", "words", "-o", "x"], 2, "is not a range"),
        (["consume", "words", "-f", "%z"], 2, "%z at character 1"),
        (["consume", "words", "-p", "0-99999999999"], 1, "There is no partition 1"),
        (["consume", "words", "-p", "x"], 2, "Partitions are written 0,2,4-6, not"),
        (["consume", "words", "--grep", "("], 2, "is not a regular expression"),
        (["consume", "words", "-b", "::1:9092"], 2, "in brackets"),
        (["consume", "words", "-b", ""], 2, "--bootstrap is empty"),
        (["consume", "words", "-X", "x"], 2, "-X takes NAME=VALUE"),
        (["consume", "words", "-X", "securty.protocol=SSL"], 2, "-X securty.protocol has no effect"),
        (["consume", "w\u00f6rds"], 1, "'w\u00f6rds' is no name of a topic"),
        (["consume", "x" * 40_000], 1, "is no name of a topic"),
        (["consume", "-r", "x+"], 1, "No topic matches"),
        (["consume"], 2, "Missing argument"),
        (["consume", "words", "--unknown"], 2, "No such option"),
        (["consume", "words", "-b", "127.0.0.1:1"], 1, "No broker answers at 127.0.0.1:1"),
        (["consume", "words", "-X", "security.protocol=TLS"], 1, "security.protocol is TLS"),
        (["produce", "nowhere"], 1, "There is no topic nowhere"),
        (["produce", "empty"], 1, "Record 2 of the input is malformed"),
        (["produce", "empty", "-l", "-p", "5"], 1, "has 1 partitions"),
        (["produce", "-l"], 1, "names no topic"),
        (["produce", "empty", "-p", "x"], 2, "--partition takes"),
        (["produce", "empty", "-l", "--timestamp", "9" * 20], 2, "--timestamp takes"),
        (["produce", "empty", "--transactional-id", ""], 2, "--transactional-id is empty"),
        (["produce", "empty", "--acks", "2"], 2, "Invalid value"),
        (["produce", "empty", "-i", "/nowhere"], 1, "/nowhere cannot be used"),
    ],
)
def test_a_failure_is_one_sentence(broker: Broker, arguments: list[str], exit_code: int, sentence: str) -> None:
    where = [] if "-b" in arguments else ["-b", broker.bootstrap]
    done = barnabas(arguments[0], *where, *arguments[1:], stdin=b'{"value":"a"}\nb\n')
    assert (done.returncode, done.stdout) == (exit_code, b"")
    assert sentence in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_following_and_writing(broker: Broker, number: signal.Signals, exit_code: int) -> None:
    """Each record is on its way while the producer's input is open; a signal loses none."""
    topic = f"signal-{number}"
    with RawClient(broker.bootstrap) as client:
        create(client, topic)
    with (
        running(broker.bootstrap, "consume", "-F", topic) as consumer,
        running(broker.bootstrap, "produce", topic, "-l") as producer,
    ):
        assert producer.stdin is not None
        assert consumer.stdout is not None
        for word in (b"one", b"two"):
            producer.stdin.write(word + b"\n")
            assert json.loads(consumer.stdout.readline())["value"] == word.decode()
        producer.send_signal(number)
        consumer.send_signal(number)
        assert (producer.wait(TIMEOUT_S), consumer.wait(TIMEOUT_S)) == (exit_code, exit_code)
        assert (consumer.stdout.read(), consumer.stderr and consumer.stderr.read()) == (b"", b"")
    assert values(broker.bootstrap, topic) == ["one", "two"]


@pytest.mark.long
def test_following_finds_new_topics_and_partitions(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "grown-1")
    with running(broker.bootstrap, "consume", "-F", "-r", "grown-.") as consumer:
        assert consumer.stdout is not None
        for number, (topic, partition) in enumerate([("grown-1", 0), ("grown-1", 2), ("grown-2", 1)]):
            if number == 1:
                assert barnabas("topics", "alter", "grown-1", "-p", "3", "-b", broker.bootstrap).returncode == 0
            if number == 2:
                with RawClient(broker.bootstrap) as client:
                    create(client, "grown-2", partitions=2)
            line = b'{"partition":%d,"value":"%d"}' % (partition, number)
            assert barnabas("produce", "-b", broker.bootstrap, topic, stdin=line).returncode == 0
            found = json.loads(consumer.stdout.readline())
            assert (found["topic"], found["partition"], found["value"]) == (topic, partition, str(number))
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(TIMEOUT_S) == 130


def test_an_output_that_fails_is_one_sentence(broker: Broker) -> None:
    consume = [*COMMAND, "consume", "-b", broker.bootstrap, "words"]
    listed = [*COMMAND, "topics", "list", "-b", broker.bootstrap]
    for command in (consume, listed):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stderr) == (
            1, b"barnabas: Standard output cannot be written: No space left on device.\n"
        )  # fmt: skip
        done = subprocess.run(
            ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False
        )
        assert (done.returncode, done.stderr) == (1, b"barnabas: Standard output is closed.\n")


def test_an_interrupted_transaction_is_aborted(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "aborted")
    with running(broker.bootstrap, "consume", "aborted", "-F", "--read-uncommitted") as consumer:
        with running(broker.bootstrap, "produce", "aborted", "-l", "--transactional-id", "x") as producer:
            assert producer.stdin is not None
            assert consumer.stdout is not None
            producer.stdin.write(b"never\n")
            assert b"never" in consumer.stdout.readline()
            producer.send_signal(signal.SIGINT)
            assert producer.wait(TIMEOUT_S) == 130
        consumer.send_signal(signal.SIGINT)
    assert barnabas("produce", "-b", broker.bootstrap, "aborted", "-l", stdin=b"after\n").returncode == 0
    assert values(broker.bootstrap, "aborted") == ["after"]
    assert values(broker.bootstrap, "aborted", "--read-uncommitted") == ["never", "after"]


@pytest.mark.long
def test_following_goes_on_after_a_topic_is_deleted(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        for topic in ("kept-1", "kept-2"):
            create(client, topic)
    with running(broker.bootstrap, "consume", "-F", "-r", "kept-.") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert barnabas("produce", "-b", broker.bootstrap, "kept-1", "-l", stdin=b"a").returncode == 0
        assert json.loads(consumer.stdout.readline())["value"] == "a"
        assert barnabas("topics", "delete", "kept-1", "-b", broker.bootstrap).returncode == 0
        assert consumer.stderr.readline() == b"barnabas: the topic kept-1 was deleted.\n"
        with RawClient(broker.bootstrap) as client:
            create(client, "kept-1")
        for topic in ("kept-2", "kept-1"):
            assert barnabas("produce", "-b", broker.bootstrap, topic, "-l", stdin=topic.encode()).returncode == 0
            assert json.loads(consumer.stdout.readline())["value"] == topic
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(TIMEOUT_S) == 130


def test_a_closed_pipe_ends_the_verb_silently(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "long")
        for _ in range(20):
            hostile_records.write(client, "long", 0, [(0, None, b"x" * 1000, ())] * 200)
    with running(broker.bootstrap, "consume", "long") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        consumer.stdout.readline()
        consumer.stdout.close()
        assert (consumer.wait(TIMEOUT_S), consumer.stderr.read()) == (0, b"")


def test_records_before_a_malformed_one_are_written(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "half")
    done = barnabas("produce", "-b", broker.bootstrap, "half", stdin=b'{"value":"a"}\n{"value":"b"}\nc\n')
    assert (done.returncode, values(broker.bootstrap, "half")) == (1, ["a", "b"])
    assert b"Record 3" in done.stderr


def test_options_change_what_is_written(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "changed")
    options = ["-K", ":", "-D", ";", "-Z", "", "-k", "none", "-H", "a=b", "-H", "c", "--timestamp", "7", "-z", "zstd"]
    done = barnabas("produce", "-b", broker.bootstrap, "changed", "-l", *options, stdin=b"k:v;w;d:")
    assert (done.returncode, done.stderr[:17]) == (0, b"3 records written")
    headers = (("a", b"b"), ("c", None))
    with RawClient(broker.bootstrap) as client:
        assert hostile_records.read(client, "changed", 0) == [
            (7, b"k", b"v", headers),
            (7, b"none", b"w", headers),
            (7, b"d", None, headers),
        ]


def test_the_text_of_nulls_means_nothing_in_json(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "json-null")
    line = b'{"key":"","value":""}\n'
    assert barnabas("produce", "-b", broker.bootstrap, "json-null", "-Z", "", stdin=line).returncode == 0
    with RawClient(broker.bootstrap) as client:
        [(_, key, value, _)] = hostile_records.read(client, "json-null", 0)
    assert (key, value) == (b"", b"")


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_are_split_for_a_topic_with_a_small_limit(broker: Broker, codec: str) -> None:
    topic = f"small-{codec}"
    with RawClient(broker.bootstrap) as client:
        create(client, topic, max_message_bytes=20_000)
    words = [os.urandom(3000).hex() for _ in range(40)]
    done = barnabas(*f"produce -b {broker.bootstrap} {topic} -l -z {codec}".split(), stdin="\n".join(words).encode())
    assert (done.returncode, values(broker.bootstrap, topic)) == (0, words), done.stderr
    done = barnabas("produce", "-b", broker.bootstrap, topic, "-l", stdin=b"x" * 30_000)
    assert (done.returncode, b"max.message.bytes" in done.stderr) == (1, True)


def test_a_rate_limits_writing(broker: Broker) -> None:
    """A lower bound only: a loaded machine is slower."""
    with RawClient(broker.bootstrap) as client:
        create(client, "slow")
    done = barnabas("produce", "-b", broker.bootstrap, "slow", "-l", "--rate", "20", stdin=b"x\n" * 10)
    assert float(done.stderr.split()[-2]) >= 0.4
    assert len(values(broker.bootstrap, "slow")) == 10


def test_a_rate_delays_only_the_next_record(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "slower")
    with running(broker.bootstrap, "produce", "slower", "-l", "--rate", "1e-300") as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"one\ntwo\n")
        assert values(broker.bootstrap, "slower", "-F", "-n", "1") == ["one"]
        producer.send_signal(signal.SIGTERM)
        assert producer.wait(TIMEOUT_S) == 143
    done = barnabas("produce", "-b", broker.bootstrap, "slower", "-l", "--rate", "1e-300", stdin=b"two\n")
    assert (done.returncode, values(broker.bootstrap, "slower")) == (0, ["one", "two"])


def test_reading_and_writing_survive_a_restart_of_the_broker() -> None:
    with Broker() as restarted:
        with RawClient(restarted.bootstrap) as client:
            create(client, "t")
        with (
            running(restarted.bootstrap, "consume", "-F", "t") as consumer,
            running(restarted.bootstrap, "produce", "t", "-l") as producer,
        ):
            assert producer.stdin is not None
            assert consumer.stdout is not None
            for word in (b"before", b"after"):
                producer.stdin.write(word + b"\n")
                assert json.loads(consumer.stdout.readline())["value"] == word.decode()
                if word == b"before":
                    restarted.kill()
                    restarted.restart()
            producer.stdin.close()
            assert producer.wait(TIMEOUT_S) == 0
            consumer.send_signal(signal.SIGINT)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat on the path: install Debian's package kcat")
def test_kcats_dialect_prints_what_kcat_prints(broker: Broker) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "kcat")
        records = [
            (0, None, b"", (("a", None), ("a", b"\xff"))),
            (5, b"", None, ()),
            (-1, b"k\n", b"\xff", (("", b""),)),
        ]
        hostile_records.write(client, "kcat", 0, records)
    layout = r"%t|%p|%o|%T|%k|%K|%s|%S|%R|%h|%%\n\x41\t"
    arguments = ["-C", "-b", broker.bootstrap, "-t", "kcat", "-e", "-q"]
    for ours, theirs in ((["-f", layout], ["-f", layout]), (["-n", "2"], ["-c", "2", "-J"])):
        expected = subprocess.run(["kcat", *arguments, *theirs], capture_output=True, check=True, timeout=TIMEOUT_S)
        found = barnabas("consume", "-b", broker.bootstrap, "kcat", "--kcat", *ours)
        assert found.stdout.decode(errors="replace") == expected.stdout.decode(errors="replace").replace(
            '"broker":1,', ""
        )


@pytest.mark.parametrize("verb", ["consume", "produce"])
def test_help_imports_no_client(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "barnabas", verb, "--help"],
        capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"barnabas.cli.verb", "click"} <= imported
    heavy = {"asyncio", "confluent_kafka", "cramjam", "crc32c", "email", "kafka", "rich", "ssl", "urllib.request"}
    assert not heavy & imported
    assert not [name for name in imported if name.startswith(("barnabas.client.cluster", "barnabas.pipeline"))]


def test_the_environment_names_the_cluster(broker: Broker) -> None:
    done = subprocess.run(
        [*COMMAND, "consume", "words", "-n", "1", "-f", "%v"],
        env={**os.environ, "BARNABAS_BOOTSTRAP": broker.bootstrap}, capture_output=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"zero", b"")


def test_requests_have_the_client_id_of_the_settings() -> None:
    """Those of kafka-python had it, those of our own connections `barnabas`: no quota of the client id applied."""
    with Broker(settings={"barnabas.slow.request.ms": 0}) as broker:
        at = ("-b", broker.bootstrap, "-X", "client.id=reports")
        assert barnabas("produce", *at, "t", "--allow-auto-topic-creation", "--lines", stdin=b"one\n").returncode == 0
        assert barnabas("consume", *at, "t", "-f", "%v").stdout == b"one"
        for api in ("Produce", "Fetch", "ListOffsets", "InitProducerId"):
            (line, *_) = [line for line in broker.log().splitlines() if f"slow request: {api}" in line]
            assert "(client reports at " in line


class CountingCluster(Cluster):
    """Counts what is asked of any node."""

    def __init__(self, broker: Broker) -> None:
        super().__init__([(broker.host, broker.port)], {})
        self.asked: Counter[Api] = Counter()

    def ask(self, api: Api, body: bytes) -> Fields:
        self.asked[api] += 1
        return super().ask(api, body)


def test_many_topics_are_written_and_read_with_a_few_metadata_requests(broker: Broker) -> None:
    """There were two for each topic that is written, and four for each that is read."""
    topics = [f"many-{number}" for number in range(50)]
    with RawClient(broker.bootstrap) as client:
        create(client, *topics)
    cluster = CountingCluster(broker)
    writer = RecordWriter(cluster)
    for topic in topics:
        writer.append(TopicPartition(topic, 0), None, topic.encode())
    writer.close()
    assert cluster.asked[Api.METADATA] <= 2
    cluster = CountingCluster(broker)
    partitions = PartitionChoice(cluster, ["many-.*"], is_regex=True, partitions=None).find()
    reader = RecordReader(cluster, resolve(cluster, partitions, parse_range("start"), committed=True, follow=False))
    found = [record.value for page in reader.pages() if page is not None for record in page.records]
    assert sorted(value.decode() for value in found if value is not None) == sorted(topics)
    assert cluster.asked[Api.METADATA] <= 6


def test_arguments_are_bytes_where_records_are(broker: Broker) -> None:
    """Names are UTF-8: kafka-python would never answer for a name that it cannot encode."""
    with RawClient(broker.bootstrap) as client:
        create(client, "bytes")
    where = [b"-b", broker.bootstrap.encode()]

    def run(*arguments: bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments, *where], input=stdin, capture_output=True, timeout=120, check=False
        )

    assert run(b"produce", b"bytes", b"-l", b"-k", b"\xff", b"-H", b"\xfe=\xfd", stdin=b"v\n").returncode == 0
    for found in (b"--grep-key", b"\xff"), (b"--grep-header", b"\xfe=\xfd"):
        assert run(b"consume", b"bytes", *found, b"-f", b"%k\xfc%v").stdout == b"\xff\xfcv"
    for arguments in ((b"topics", b"describe"), (b"groups", b"describe"), (b"consume", b"bytes", b"-g")):
        done = run(*arguments, b"\xff")
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"takes UTF-8" in done.stderr
        assert b"Traceback" not in done.stderr


def test_names_of_topics_and_groups_are_completed(broker: Broker) -> None:
    """A group whose name a terminal would obey is left out."""
    reset = ["groups", "reset", "--topic", "words", "--to-earliest", "--execute", "-b", broker.bootstrap]
    for group in ("readers", "re\x1b[2J"):
        assert barnabas(*reset, group).returncode == 0
    for words, expected in (
        ("consume wo", "words"),
        ("consume words -g re", "readers"),
        ("produce wo", "words"),
        ("bench --topic wo", "words"),
        ("groups delete re", "readers"),
    ):
        completing = {"_BARNABAS_COMPLETE": "bash_complete", "COMP_WORDS": f"barnabas {words}"}
        done = subprocess.run(
            [*COMMAND],
            env={
                **os.environ, **completing, "COMP_CWORD": str(words.count(" ") + 1), "BARNABAS_BOOTSTRAP": broker.bootstrap
            },
            capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.stdout == f"plain,{expected}\n"
