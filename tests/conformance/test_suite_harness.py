"""The conformance suite itself, with a scripted driver: it fails where it must."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.suite.compatibility_page import Results, page
from tests.conformance.suite.player import FAILED, PASSED, UNSUPPORTED, Player
from tests.conformance.suite.steps import (
    Matcher,
    Record,
    Step,
    all_of,
    containing,
    do,
    including,
    kill,
    members,
    mismatch,
    scenario,
    without,
)
from tests.conformance.suite.tables.all_scenarios import (
    FLAKY,
    KNOWN_FAILURES,
    SCENARIOS,
    SECURITY_SCENARIOS,
    scenarios_of,
)

DRIVER = """
import json, sys
script = json.load(open(sys.argv[1]))
for line in sys.stdin:
    verb = json.loads(line)["verb"]
    answers = script.get(verb, [{"told": {}}])
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if answer == "die":
        sys.exit("I am dead")
    print(json.dumps(answer), flush=True)
"""


def played(tmp_path: Path, answers: dict[str, list[Any]], *steps: Step) -> Any:
    """The outcome of these steps with a driver that gives these responses in order."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(answers))
    with Player([sys.executable, "-c", DRIVER, str(script)], "nowhere:1") as player:
        return player.play(scenario("subject", "name", *steps))


READ = {"partition": 0, "offset": 0, "timestamp": 5, "key": "aw==", "value": "dg==", "headers": [["h", None]]}
WROTE = Record(0, b"k", b"v", (("h", None),))


@pytest.mark.parametrize(
    ("answer", "step", "state"),
    [
        ({"told": {"offset": 3}}, do("ask").gives(offset=3), PASSED),
        ({"told": {"offset": 4}}, do("ask").gives(offset=3), FAILED),
        ({"told": {}}, do("ask").gives(offset=3), FAILED),
        ({"refused": 36, "message": ""}, do("ask").is_refused("TOPIC_ALREADY_EXISTS"), PASSED),
        ({"refused": 3, "message": ""}, do("ask").is_refused("TOPIC_ALREADY_EXISTS"), FAILED),
        ({"refused": "fenced", "message": ""}, do("ask").is_refused("PRODUCER_FENCED", "fenced"), PASSED),
        ({"refused": 3, "message": ""}, do("ask"), FAILED),
        ({"told": {}}, do("ask").is_refused("TOPIC_ALREADY_EXISTS"), FAILED),
        ({"unsupported": "no"}, do("ask").gives(offset=3), UNSUPPORTED),
        ("die", do("ask"), FAILED),
        ({"told": {"records": [READ]}}, do("ask").gives(records=[WROTE]), PASSED),
        ({"told": {"records": [READ]}}, do("ask").gives(records=[WROTE, WROTE]), FAILED),
        ({"told": {"records": [READ]}}, do("ask").gives(records=[WROTE._replace(value=b"w")]), FAILED),
        ({"told": {"records": [READ]}}, do("ask").gives(records=[WROTE._replace(headers=(("h", b""),))]), FAILED),
        ({"told": {"records": [READ]}}, do("ask").gives(records=[WROTE._replace(timestamp=6)]), FAILED),
        ({"told": {"records": [READ]}}, do("ask").gives(records=[WROTE._replace(timestamp=5)]), PASSED),
        ({"told": {"topics": ["a", "b"]}}, do("ask").gives(topics=containing("a")), PASSED),
        ({"told": {"topics": ["a", "b"]}}, do("ask").gives(topics=containing("c")), FAILED),
        ({"told": {"topics": ["a", "b"]}}, do("ask").gives(topics=without("b")), FAILED),
        ({"told": {"configs": {"a.b": "1"}}}, do("ask").gives(configs=including(a_b="1")), PASSED),
        ({"told": {"configs": {"a.b": "1"}}}, do("ask").gives(configs=including(a_b="2")), FAILED),
        ({"told": {"id": ""}}, do("ask").gives(id=Matcher("something", bool)), FAILED),
    ],
)  # fmt: skip
def test_an_answer_decides(tmp_path: Path, answer: Any, step: Step, state: str) -> None:
    """Only the expected response passes; an unsupported verb differs from a failure."""
    outcome = played(tmp_path, {"ask": [answer]}, step)
    assert outcome.state == state
    assert bool(outcome.reason) == (state != PASSED)


def test_a_result_may_become_true_later(tmp_path: Path) -> None:
    """`becomes` repeats the request, also after errors."""
    answers = [{"refused": 3, "message": ""}, {"told": {"offset": 1}}, {"told": {"offset": 2}}]
    assert played(tmp_path, {"ask": answers}, do("ask").becomes(offset=2)).state == PASSED
    assert played(tmp_path, {"ask": answers}, do("ask").gives(offset=2)).state == FAILED


def test_members_are_checked_together(tmp_path: Path) -> None:
    """Shares are counted per member, partitions and values are combined; a killed process is replaced."""
    response = {"told": {"assigned": [["t", 0]], "records": [{**READ, "value": "dg=="}]}}
    both = members("a", "b@other").gives(shares=[1, 1], assigned=[["t", 0], ["t", 0]], values={b"v"})
    assert played(tmp_path, {"member": [response]}, both, kill("other"), both).state == PASSED
    assert played(tmp_path, {"member": [response]}, members("a").gives(assigned=all_of("t", 2))).state == FAILED


def test_records_are_compared_per_partition(tmp_path: Path) -> None:
    """The order within a partition is compared, the order between partitions is not."""
    read = [{**READ, "partition": 1}, {**READ, "offset": 1, "value": "eA=="}, READ]
    first, second = WROTE, WROTE._replace(value=b"x")
    assert mismatch([first, second, WROTE._replace(partition=1)], read) is None
    assert mismatch([second, first, WROTE._replace(partition=1)], read) is not None


def test_no_two_scenarios_share_a_name() -> None:
    """Names identify the rows of the table."""
    names = [one.name for one in (*SCENARIOS, *SECURITY_SCENARIOS)]
    assert sorted(set(names)) == sorted(names)
    assert {name for _, name in KNOWN_FAILURES.keys() | FLAKY.keys()} <= set(names)


def test_the_scenarios_of_a_cluster_expect_its_nodes(tmp_path: Path) -> None:
    """All other scenarios are those of one node."""
    (changed,) = [three for one, three in zip(SCENARIOS, scenarios_of(3), strict=True) if one is not three]
    (step,) = changed.steps
    for brokers, outcome in ([1, 2, 3], PASSED), ([1, 2], FAILED), ([1], FAILED):
        answer = {"told": {"controller": 2, "brokers": brokers}}
        assert played(tmp_path, {"describe_cluster": [answer]}, step).state == outcome


def test_the_table_distinguishes_failed_from_not_run(tmp_path: Path) -> None:
    """A failure is marked and counted; an unsupported scenario has a footnote."""
    first, second, third = SCENARIOS[:3]
    outcomes = {
        ("one", first.name): played(tmp_path, {}, do("ask")),
        ("one", second.name): played(tmp_path, {"ask": [{"unsupported": "not mine"}]}, do("ask")),
        ("one", third.name): played(tmp_path, {"ask": [{"refused": 3, "message": "x"}]}, do("ask")),
    }
    results = Results({"one": "1.0"}, {"one": "Go"}, {}, outcomes, {})
    text = page(results, "a broker")
    assert f"| {first.name} | yes |" in text
    assert f"| {second.name} | 1 |" in text
    assert f"| {third.name} | **fails** |" in text
    assert "1. one: not mine" in text
    (failure,) = results.failures()
    assert third.name in failure


def test_a_flaky_scenario_is_no_change_when_it_passes_or_fails(tmp_path: Path) -> None:
    """The cell is the same either way, so the page is stable."""
    key, reason = next(iter(FLAKY.items()))
    pages = set()
    answers: list[dict[str, Any]] = [{"told": {}}, {"refused": 3, "message": "x"}]
    for answer in answers:
        outcomes = {key: played(tmp_path, {"ask": [answer]}, do("ask"))}
        results = Results({key[0]: "1.0"}, {key[0]: "Python"}, {}, outcomes, {})
        assert results.failures() == []
        pages.add(page(results, "a broker"))
    (text,) = pages
    assert f"| {key[1]} | yes 1 |" in text
    assert f"1. {key[0]}, not in every run, with Apache Kafka too: {reason}" in text
