"""The admin verbs against a broker: what they change, print and refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer

import barnabas
from tests.cli.running import Verbs
from tests.support.librdkafka import WAIT_S
from tests.support.waiting import until

NAMES = iter(range(1000))


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with barnabas.Broker(settings={"num.partitions": 3, "offsets.topic.num.partitions": 4}) as broker:
        yield Verbs(broker.bootstrap)


@pytest.fixture
def topic(verbs: Verbs) -> str:
    """A topic with the records 0 to 9 in each of three partitions."""
    name = f"topic-{next(NAMES)}"
    assert verbs.run(f"topics create {name}").code == 0
    producer = KafkaProducer(bootstrap_servers=verbs.bootstrap)
    for number in range(30):
        producer.send(name, b"%d" % number, partition=number % 3, timestamp_ms=1_000_000 + number // 3)
    producer.close()
    return name


def test_a_topic_lives_and_dies(verbs: Verbs) -> None:
    made = verbs.rows("topics create born -p 2 -c retention.ms=1000")
    assert made == [{"topic": "born", "partitions": 2, "replicas": 1, "result": "created"}]
    assert verbs.refused("topics create born") == (
        "Cannot create topic born: TOPIC_ALREADY_EXISTS: Topic 'born' already exists."
    )
    assert verbs.rows("topics create born --if-not-exists")[0]["result"] == "exists"
    assert verbs.rows("topics alter born -p 5 --dry-run")[0]["result"] == "valid"
    assert verbs.rows("topics list bor.")[0]["partitions"] == 2
    verbs.rows("topics alter born -p 5 -c cleanup.policy=compact")
    [described] = verbs.rows("topics describe born --offsets")
    assert [part["end"] for part in described["partitions"]] == [0] * 5
    assert verbs.rows("topics delete born") == [{"topic": "born", "result": "deleted"}]
    assert verbs.rows("topics list born") == []
    assert "born: it does not exist" in verbs.refused("topics describe born")


def test_replicas_can_be_assigned(verbs: Verbs) -> None:
    assert verbs.rows("topics create assigned --assign 1 --assign 1")[0]["partitions"] == 2
    assert verbs.run("topics create assigned --assign 1 -p 2").code == 2
    assert "no such broker" in verbs.refused("topics create assigned-2 --assign 7")


def test_a_topic_that_is_named_twice_is_described_once(verbs: Verbs, topic: str) -> None:
    [described] = verbs.rows(f"topics describe {topic} {topic}")
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]


def test_items_after_a_failed_one_are_done(verbs: Verbs, topic: str) -> None:
    ended = verbs.run(f"topics delete nope {topic}")
    assert (ended.code, ended.out.split()) == (1, ["TOPIC", "RESULT", topic, "deleted"])
    assert ended.err == "barnabas: Cannot delete topic nope: it does not exist, or this user may not see it.\n"


def test_trim_shows_first_and_deletes_then(verbs: Verbs, topic: str) -> None:
    shown = verbs.run(f"topics trim {topic}:0-1 --offset 4")
    assert "repeat it with --execute" in shown.err
    assert [row["start"] for row in verbs.rows(f"topics describe {topic} --offsets")[0]["partitions"]] == [0, 0, 0]
    assert [row["deleted"] for row in verbs.rows(f"topics trim {topic}:0-1 --offset 4 --execute")] == [4, 4]
    verbs.rows(f"topics trim {topic}:2 --time 1000007 --execute")
    assert [row["start"] for row in verbs.rows(f"topics describe {topic} --offsets")[0]["partitions"]] == [4, 4, 7]
    assert [row["new_start"] for row in verbs.rows(f"topics trim {topic} --all")] == [10, 10, 10]
    assert "has no partition 9" in verbs.refused(f"topics trim {topic}:9 --all")


@pytest.mark.parametrize(
    ("goal", "offsets"),
    [
        ("--to-earliest", [0, 0, 0]),
        ("--to-latest", [10, 10, 10]),
        ("--to-offset 50", [10, 10, 10]),
        ("--to-offset 6", [6, 6, 6]),
        ("--shift-by -3", [2, 2, 2]),
        ("--to-time 1000008", [8, 8, 8]),
        ("--to-time 1970-01-01T00:16:40.004", [4, 4, 4]),
        ("--by-duration 1h", [10, 10, 10]),
        ("--by-duration 99999999999w", [0, 0, 0]),
        ("--to-current", [5, 5, 5]),
    ],
)
def test_reset_moves_committed_offsets_to_the_goal(verbs: Verbs, topic: str, goal: str, offsets: list[int]) -> None:
    group = f"of-{topic}"
    verbs.rows(f"groups reset {group} --topic {topic} --to-offset 5 --execute")
    assert [row["target"] for row in verbs.rows(f"groups reset {group} {goal}")] == offsets
    assert {row["committed"] for row in verbs.rows(f"groups lag {group} --partitions")} == {5}
    verbs.rows(f"groups reset {group} {goal} --execute")
    assert [row["committed"] for row in verbs.rows(f"groups lag {group} --partitions")] == offsets
    assert [row["lag"] for row in verbs.rows(f"groups lag {group}")] == [30 - sum(offsets)]


def test_reset_reads_a_plan(verbs: Verbs, topic: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(f'"{topic}",0,3\n{topic},2,4\n')
    verbs.rows(f"groups reset planned --from-file {plan} --execute")
    found = {
        (row["topic"], row["partition"]): row["committed"] for row in verbs.rows("groups lag planned --partitions")
    }
    assert found == {(topic, 0): 3, (topic, 2): 4}
    plan.write_text("x,y,z\n")
    assert verbs.run(f"groups reset planned --from-file {plan}").code == 2


def test_reset_names_partitions_without_an_offset_to_shift(verbs: Verbs, topic: str) -> None:
    group = f"of-{topic}"
    assert f"has none for {topic}-0, {topic}-1, {topic}-2." in verbs.refused(
        f"groups reset {group} --topic {topic} --shift-by -1 --execute"
    )
    verbs.rows(f"groups reset {group} --topic {topic}:1 --to-offset 5 --execute")
    shifted = verbs.run(f"groups reset {group} --topic {topic} --shift-by -1 --execute --json")
    assert [(row["partition"], row["target"]) for row in shifted.rows()] == [(1, 4)]
    assert shifted.err == f"Left out, since group {group} or the file has no offset for them: {topic}-0, {topic}-2.\n"


def test_a_group_with_members_keeps_its_offsets(verbs: Verbs, topic: str) -> None:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=verbs.bootstrap, group_id="classic", auto_offset_reset="earliest", client_id="reader"
    )
    try:
        next(consumer)
        consumer.commit()
        [group] = verbs.rows("groups describe classic")
        assert (group["type"], group["state"], group["assignor"]) == ("classic", "Stable", "range")
        assert {row["client_id"] for row in group["partitions"]} == {"reader"}
        assert [row["end"] for row in group["partitions"]] == [10, 10, 10]
        assert "1 member(s): stop them" in verbs.refused("groups reset classic --to-latest")
        assert "NON_EMPTY_GROUP" in verbs.refused("groups delete classic")
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in verbs.refused(f"groups delete-offsets classic --topic {topic} --execute")
    finally:
        consumer.close()
    assert verbs.rows(f"groups delete-offsets classic --topic {topic}:0 --execute")
    assert len(verbs.rows("groups lag classic --partitions")) == 2
    assert verbs.rows("groups delete classic") == [{"group": "classic", "result": "deleted"}]
    for line in ("groups describe classic", f"groups delete-offsets classic --topic {topic}"):
        assert verbs.refused(line) == "Cannot describe group classic: there is no group classic."


def test_a_group_of_the_new_protocol_has_epochs(verbs: Verbs, topic: str) -> None:
    settings = {"group.id": "modern", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": verbs.bootstrap, **settings})
    try:
        consumer.subscribe([topic])
        assert consumer.poll(WAIT_S) is not None
        [group] = verbs.rows("groups describe modern")
        assert (group["type"], group["state"], len(group["members"])) == ("consumer", "Stable", 1)
        assert group["epoch"] == group["assignment_epoch"] == group["members"][0]["epoch"]
        assert {row["name"] for row in verbs.rows("groups list --type consumer")} == {"modern"}
        assert "modern" not in {row["name"] for row in verbs.rows("groups list --state empty")}
        members = verbs.run("groups describe modern --members").out
        assert f"{topic}-0,{topic}-1,{topic}-2" in members
    finally:
        consumer.close()


def test_configs_are_set_and_deleted(verbs: Verbs, topic: str) -> None:
    verbs.rows(f"configs set topic {topic} cleanup.policy=compact retention.ms=5")
    verbs.rows(f"configs set topic {topic} cleanup.policy+=delete retention.ms=6 --dry-run")
    found = {row["name"]: row for row in verbs.rows(f"configs describe topic {topic}")}
    assert found["cleanup.policy"]["value"] == "compact"
    assert found["retention.ms"]["source"] == "topic"
    verbs.rows(f"configs set topic {topic} cleanup.policy+=delete")
    [row] = verbs.rows(f"configs describe topic {topic} --key cleanup.policy --docs")
    assert row["value"] == "compact,delete"
    assert [one["source"] for one in row["synonyms"]] == ["topic", "default"]
    verbs.rows(f"configs delete topic {topic} cleanup.policy retention.ms")
    assert not {"cleanup.policy", "retention.ms"} & {
        row["name"] for row in verbs.rows(f"configs describe topic {topic}")
    }
    assert "Unknown topic config name: nope" in verbs.refused(f"configs set topic {topic} nope=1")


def test_configs_of_brokers_groups_metrics_and_loggers(verbs: Verbs) -> None:
    verbs.rows("configs set broker default log.cleaner.threads=2")
    [row] = verbs.rows("configs describe broker 1 --key log.cleaner.threads")
    assert (row["value"], row["source"]) == ("2", "cluster")
    verbs.rows("configs delete broker default log.cleaner.threads")
    verbs.rows("configs set group configured consumer.session.timeout.ms=50000")
    assert verbs.rows("configs describe group configured")[0]["value"] == "50000"
    verbs.rows("configs set client-metrics watched interval.ms=5000")
    assert {"kind": "client-metrics", "name": "watched"} in verbs.rows("configs list client-metrics")
    assert verbs.rows("configs describe broker-logger 1 --all")
    assert verbs.run("configs describe broker one").code == 2


def test_a_user_gets_a_password_and_loses_it(verbs: Verbs) -> None:
    verbs.rows("users set alice --mechanism SCRAM-SHA-256 --iterations 5000", stdin="secret\n")
    assert verbs.rows("users list alice") == [{"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 5000}]
    assert verbs.rows("users delete alice")[0]["result"] == "deleted"
    assert "RESOURCE_NOT_FOUND" in verbs.refused("users list alice")
    assert "first line of standard input" in verbs.refused("users set alice")


def test_quotas_are_set_listed_and_deleted_by_entity(verbs: Verbs) -> None:
    verbs.rows("quotas set producer_byte_rate=1000 request_percentage=50 --user alice --default client-id")
    rows = verbs.rows("quotas list --user alice")
    assert [(row["key"], row["value"]) for row in rows] == [("producer_byte_rate", 1000), ("request_percentage", 50)]
    assert rows[0]["entity"] == {"user": "alice", "client-id": None}
    assert verbs.rows("quotas list --user alice --exact") == []
    assert "user=alice,client-id=<default>" in verbs.run("quotas list").out
    verbs.rows("quotas delete producer_byte_rate request_percentage --user alice --default client-id")
    assert verbs.rows("quotas list") == []
    assert verbs.run("quotas set producer_byte_rate=1000").code == 2
    assert "INVALID_REQUEST" in verbs.refused("quotas set nope=1 --user alice")


def test_nodes_shows_brokers_quorum_features_and_directories(verbs: Verbs, topic: str) -> None:
    [node] = verbs.rows("nodes list")
    assert (node["id"], f"{node['host']}:{node['port']}", node["fenced"]) == (1, verbs.bootstrap, False)
    [quorum] = verbs.rows("nodes quorum")
    assert [(one["id"], one["role"], one["lag"]) for one in quorum["replicas"]] == [(1, "leader", 0)]
    assert "metadata.version" in {row["name"] for row in verbs.rows("nodes features")}
    assert [row["error"] for row in verbs.rows("nodes dirs")] == [""]
    assert [row["partition"] for row in verbs.rows(f"nodes dirs --replicas --topic {topic}")] == [0, 1, 2]


def test_elections_and_reassignments_need_brokers_that_exist(verbs: Verbs, topic: str, tmp_path: Path) -> None:
    assert {row["result"] for row in verbs.rows(f"partitions elect {topic}")} == {"ELECTION_NOT_NEEDED"}
    assert verbs.rows("partitions elect --all") == []
    assert verbs.rows(f"partitions reassign {topic} --to 1") == []
    assert verbs.rows("partitions reassignments") == []
    assert verbs.refused(f"partitions reassign {topic} --to 7") == "There is no broker 7: brokers are 1."
    assert "2 replicas need as many brokers" in verbs.refused(f"partitions reassign {topic} -r 2")
    plan = tmp_path / "plan.json"
    plan.write_text(f'{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"replicas":[7]}}]}}')
    [row] = verbs.rows(f"partitions reassign --file {plan}")
    assert (row["new_replicas"], row["copies_to"]) == ([7], [7])
    assert "INVALID_REPLICA_ASSIGNMENT" in verbs.refused(f"partitions reassign --file {plan} --execute")


def test_a_plan_moves_replicas_to_the_log_directories_that_it_names(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in "ab"]
    plan = tmp_path / "plan.json"

    def write(*log_dirs: str) -> None:
        rows = [
            {"topic": "moving", "partition": number, "replicas": [1], "log_dirs": [path]}
            for number, path in enumerate(log_dirs)
        ]
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))

    with barnabas.Broker(",".join(dirs)) as broker:
        verbs = Verbs(broker.bootstrap)

        def places() -> list[str]:
            rows = verbs.rows("nodes dirs --replicas --topic moving")
            return [row["dir"] for row in sorted(rows, key=lambda row: row["partition"])]

        verbs.rows("topics create moving -p 3")
        before = places()
        wanted = [next(path for path in dirs if path != one) for one in before]
        write(*wanted[:2], "any")
        shown = verbs.rows(f"partitions reassign --file {plan}")
        assert [row["directories"] for row in shown] == [[f"1:{path}"] for path in wanted[:2]]
        assert places() == before
        assert verbs.rows(f"partitions reassign --file {plan} --execute") == shown
        until(lambda: places() == [*wanted[:2], before[2]], "two replicas have moved")
        assert verbs.rows(f"partitions reassign --file {plan} --execute") == []
        write("/nowhere")
        sentence = "Cannot move moving-0 to /nowhere of broker 1: LOG_DIR_NOT_FOUND"
        assert sentence in verbs.refused(f"partitions reassign --file {plan} --execute")


def test_a_transaction_is_found_and_aborted(verbs: Verbs, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=verbs.bootstrap, transactional_id="moving")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"x", partition=1).get(10)
    [row] = verbs.rows("transactions describe moving")
    assert (row["state"], [tuple(one.values()) for one in row["partitions"]]) == ("Ongoing", [(topic, 1)])
    assert [one["open_from"] for one in verbs.rows(f"transactions producers {topic}:1") if one["open_from"] >= 0] == [
        10
    ]
    assert verbs.rows(f"transactions hanging {topic}") == []
    assert verbs.rows("transactions abort moving")[0]["result"] == "unchanged"
    assert verbs.rows("transactions abort moving --execute")[0]["result"] == "aborted"
    [row] = verbs.rows("transactions list")
    assert row["state"] in {"PrepareAbort", "CompleteAbort", "Empty"}
    producer.close(timeout=0)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in verbs.refused("transactions describe nope")


def test_acls_need_an_authorizer(verbs: Verbs) -> None:
    assert verbs.refused("acls list") == (
        "Cannot list ACLs: the cluster has no authorizer (setting authorizer.class.name)."
    )
    assert verbs.run("acls remove --execute").code == 2
    assert verbs.run("acls add --allow alice --topic t --operation read").code == 2
    assert verbs.run("acls add --allow User:alice").code == 2


def test_a_cluster_that_does_not_answer_is_one_sentence() -> None:
    assert re.match(
        r"No broker answers at 127\.0\.0\.1:1: .*refused; start it", Verbs("127.0.0.1:1").refused("topics list")
    )


def test_a_wrong_time_is_a_wrong_argument(verbs: Verbs, topic: str) -> None:
    ended = verbs.run(f"topics trim {topic} --time yesterday")
    assert ended.code == 2
    assert "2026-01-31T12:00:00" in ended.err
