"""The checker finds each planted anomaly, and none in a correct history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exactly_once.anomalies import Event, anomalies
from tests.exactly_once.history import History, read_histories

RIGHT = """
w sends   t1 a 0 -1 x
w sends   t1 a 0 -1 y
w sends   t1 b 0 -1 z
w sent    t1 a 0 0 x
w sent    t1 a 0 1 y
w sent    t1 b 0 0 z
w commits t1
w committed t1
w sends   t2 a 0 -1 gone
w sends   t2 a 0 -1 again
w sent    t2 a 0 3 gone
w sent    t2 a 0 4 again
w aborted t2
w sends   t3 a 0 -1 again
w sent    t3 a 0 6 again
w commits t3
w committed t3
v sends   t4 a 0 -1 perhaps
v sends   t4 b 0 -1 with it
v commits t4
v sends   t5 a 0 -1 never
r assigned - a 0
r polled  - a 0 0 x
r polled  - a 0 1 y
r polled  - a 0 6 again
r polled  - a 0 8 perhaps
r assigned - a 0
r polled  - a 0 1 y
c polled  c1 a 0 6 again
c polled  c1 a 0 8 perhaps
c again   c1 a 0
c polled  c2 a 0 6 again
c again   c3 a 0
c polled  c4 a 0 8 perhaps
s assigned - a 0
s assigned - b 0
s polled  - b 0 0 z
s polled  - b 0 2 with it
s polled  - a 0 6 again
"""
BLANK = ["", "-1", "-1", ""]


def history(text: str) -> list[Event]:
    """Events from lines; omitted fields are blank."""
    found = []
    for fields in (line.split(maxsplit=6) for line in text.splitlines() if line):
        client, what, transaction, topic, partition, offset, value = fields + BLANK[len(fields) - 3 :]
        found.append(Event(client, what, transaction.strip("-"), topic, int(partition), int(offset), value))
    return found


def test_a_correct_history_has_no_anomaly() -> None:
    """Aborts, retries after an abort, unknown outcomes and new assignments are no anomalies."""
    assert anomalies(history(RIGHT)) == []


PLANTED = {
    "inconsistent offset": ("r polled  - a 0 1 y", "r polled  - a 0 1 other"),
    "duplicate": ("s polled  - a 0 6 again", "s polled  - a 0 9 x"),
    "aborted read": ("s polled  - a 0 6 again", "s polled  - a 0 3 gone"),
    "lost write": ("r polled  - a 0 0 x", "r polled  - a 0 6 again"),
    "unseen": ("s polled  - b 0 0 z\ns polled  - b 0 2 with it", ""),
    "torn transaction": ("s polled  - b 0 2 with it", ""),
    "non-monotonic poll": ("r polled  - a 0 8 perhaps", "r polled  - a 0 8 perhaps\nr polled  - a 0 8 perhaps"),
    "skipped by a poll": ("r polled  - a 0 0 x\nr polled  - a 0 1 y\n", "r polled  - a 0 0 x\n"),
    "offset of an aborted transaction": ("c polled  c2 a 0 6 again\nc again   c3 a 0\n", ""),
    "non-monotonic send": ("w sent    t1 a 0 1 y", "w sent    t1 a 0 7 y"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_each_planted_anomaly_is_found(kind: str) -> None:
    """Each change of the correct history plants one kind; it may show as another kind too."""
    was, becomes = PLANTED[kind]
    assert was in RIGHT
    assert kind in {found.kind for found in anomalies(history(RIGHT.replace(was, becomes, 1)))}


@pytest.mark.parametrize(("target", "is_found"), [("c", True), ("b", False)])
def test_only_a_client_with_the_same_targets_replaces_an_aborted_read(target: str, is_found: bool) -> None:
    """A record that a client aborts and does not read again is lost, even if another group reads the same topic."""
    aborted = "d polled d1 a 0 0 x\nd sends d1 b 0 -1 x\nd aborted d1\nd again d1 a 0\nd polled d2 a 0 1 y"
    other = f"e polled e1 a 0 0 x\ne sends e1 {target} 0 -1 x"
    found = {one.kind for one in anomalies(history(f"{RIGHT}\n{aborted}\n{other}"))}
    assert ("offset of an aborted transaction" in found) is is_found


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("r polled - a 0 10 never", "never was read, and was open"),
        ("r polled - a 0 10 gone", "gone was read, and was aborted"),
        ("r polled - a 0 4 again", "again was read at a-0@4, where it was aborted"),
    ],
)
def test_an_aborted_record_is_distinguished_from_its_retry(line: str, sentence: str) -> None:
    """An aborted value, a value without a commit request, and the aborted one of two attempts."""
    found = anomalies(history(f"{RIGHT}\nr assigned - a 0\n{line}"))
    assert sentence in {one.sentence for one in found if one.kind == "aborted read"}


def test_a_history_ends_at_its_last_complete_line(tmp_path: Path) -> None:
    """A line that the kill cut off is left out."""
    written = History(tmp_path, "w-1")
    written.note("sends", "t", "a", 2, -1, "x")
    written.note("committed", "t")
    written.close()
    with (tmp_path / "w-1.jsonl").open("a") as file:
        file.write('["polled", "", "a"')
    assert read_histories(tmp_path) == [Event("w-1", "sends", "t", "a", 2, -1, "x"), Event("w-1", "committed", "t")]
