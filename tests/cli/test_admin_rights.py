"""The admin verbs over SASL_SSL with ACLs: the sentence that a user without rights gets, and how rights are granted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import barnabas
from tests.cli.running import Verbs

pytestmark = pytest.mark.long
ROOT, BOB = "root", "bob"


@pytest.fixture(scope="module")
def broker() -> Iterator[barnabas.Broker]:
    security = barnabas.Security(users={ROOT: "r", BOB: "b"}, has_acls=True)
    with barnabas.Broker(settings={"num.partitions": 1}, security=security) as running:
        yield running


@pytest.fixture(scope="module")
def root(broker: barnabas.Broker) -> Verbs:
    verbs = verbs_of(broker, ROOT)
    verbs.rows("topics create flights")
    verbs.rows("groups reset counters --topic flights --to-latest --execute")
    return verbs


@pytest.fixture(scope="module")
def bob(broker: barnabas.Broker) -> Verbs:
    return verbs_of(broker, BOB)


def verbs_of(broker: barnabas.Broker, user: str) -> Verbs:
    return Verbs(broker.bootstrap, "--command-config", str(broker.write_client_properties(user=user)))


DENIED = [
    ("topics create planes", "Create on topic planes"),
    ("topics describe flights", "Describe on topic flights"),
    ("topics alter flights -p 2", "Alter on topic flights"),
    ("topics delete flights", "Delete on topic flights"),
    ("topics trim flights --all", "Describe on topic flights"),
    ("groups describe counters", "Describe on group counters"),
    ("groups reset counters --to-latest", "Describe on group counters"),
    ("groups delete counters", "Describe on group counters"),
    ("configs describe topic flights", "DescribeConfigs on topic flights"),
    ("configs set topic flights retention.ms=1", "AlterConfigs on topic flights"),
    ("configs describe broker 1", "DescribeConfigs on the cluster"),
    ("configs set broker default log.cleaner.threads=2", "AlterConfigs on the cluster"),
    ("acls list", "Describe on the cluster"),
    ("acls add --allow User:bob --topic flights --operation all", "Alter on the cluster"),
    ("acls remove --topic flights --execute", "Alter on the cluster"),
    ("users list", "Describe on the cluster"),
    ("users set bob", "Alter on the cluster"),
    ("quotas list", "DescribeConfigs on the cluster"),
    ("quotas set producer_byte_rate=1 --user bob", "AlterConfigs on the cluster"),
    ("nodes quorum", "Describe on the cluster"),
    ("nodes dirs", "Describe on the cluster"),
    ("partitions elect --all", "Alter on the cluster"),
    ("partitions reassignments", "Describe on the cluster"),
    ("transactions describe mover", "Describe on transactional id mover"),
    ("transactions hanging flights", "Describe on topic flights"),
]


@pytest.mark.parametrize(("line", "right"), DENIED)
def test_a_missing_right_is_named(root: Verbs, bob: Verbs, line: str, right: str) -> None:
    assert bob.refused(line, stdin="secret\n") == f"The cluster denies {right}: grant it with barnabas acls add."


def test_what_a_user_may_not_see_is_not_listed(root: Verbs, bob: Verbs) -> None:
    for verb in ("topics", "groups", "transactions"):
        assert bob.rows(f"{verb} list") == []
    assert [row["name"] for row in root.rows("topics list")] == ["flights"]


def test_granted_rights_suffice(root: Verbs, bob: Verbs) -> None:
    granted = root.rows("acls add --allow User:bob --topic fli --prefixed --consumer --group counters")
    assert {(row["resource"], row["operation"]) for row in granted} == {("topic", "describe"), ("topic", "read")} | {
        ("group", "read")
    }
    try:
        assert [row["name"] for row in bob.rows("topics list")] == ["flights"]
        assert bob.rows("groups reset counters --to-earliest --execute")
        assert [row["principal"] for row in root.rows("acls list --topic flights")] == ["User:bob"] * 2
    finally:
        shown = root.rows("acls remove --principal User:bob")
        assert root.rows("acls remove --principal User:bob --execute") == shown
    assert len(shown) == 3
    assert root.rows("acls list") == []
    assert "denies Describe on topic flights" in bob.refused("topics describe flights")


def test_a_wrong_password_is_one_sentence(broker: barnabas.Broker, tmp_path: Path) -> None:
    good = broker.write_client_properties(user=BOB).read_text()
    wrong = tmp_path / "wrong.properties"
    wrong.write_text(good.replace('password="b"', 'password="x"'))
    sentence = Verbs(broker.bootstrap, "--command-config", str(wrong)).refused("topics list")
    assert "refused the login" in sentence


def test_bench_and_top_log_in_too(root: Verbs) -> None:
    [row] = root.rows("bench produce -d 1s --rate 100")
    assert row["records"] > 0
    assert root.rows("top --once --interval 100ms")


def test_sizes_are_unknown_without_the_right_to_see_them(root: Verbs, bob: Verbs) -> None:
    root.rows("acls add --allow User:bob --topic flights --operation describe")
    [view] = bob.rows("top --once --interval 100ms")
    assert [(row["topic"], row["bytes"]) for row in view["topics"]] == [("flights", None)]
    root.rows("acls remove --principal User:bob --execute")


def test_schedules_list_leaves_out_and_names_topics_whose_configs_are_hidden(root: Verbs, bob: Verbs) -> None:
    root.rows("acls add --allow User:bob --topic flights --operation describe")
    listed = bob.run("schedules list --json")
    root.rows("acls remove --principal User:bob --execute")
    assert listed.rows() == []
    assert "left out, since this user has no DescribeConfigs on them: flights." in listed.err
