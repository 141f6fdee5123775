"""The check of a commit log's files: chains, queues, torn and damaged frames."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage.commitlog.queue_file import unpack_entries
from storage.commitlog.slots import SlotId
from storage.inspection.commit_log_check import CommitLogCheck
from storage.inspection.issues import Issue, Severity
from storage.inspection.slot_check import SlotCheck, StoredSlot, stored_slots
from storage.io.disk import Disk
from storage.log.log_offsets import Checkpoint
from tests.support.seeds import seed_of
from tests.support.segments import append, batch, reset_engine, truncate_engine
from tests.unit.storage.commitlog.test_cleaning import clean
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, damage, sync

NAMES = {(b"t" * 16, 0): "t-0", (b"t" * 16, 1): "t-1"}


def issues_of(root: Path) -> list[Issue]:
    check = CommitLogCheck(Disk(), str(root), NAMES)
    check.run()
    return check.issues


def slot_issues(root: Path, stored: StoredSlot, known: Checkpoint = Checkpoint()) -> list[Issue]:  # noqa: B008  # immutable
    check = SlotCheck(str(root), f"t-{stored.slot_id.partition}", stored.engine)
    check.run(known)
    return check.issues


def written(root: Path, *, is_closed: bool) -> Process:
    """Two partitions in several files; without a close the last file is not sealed."""
    process = Process(root)
    for number in range(40):
        append_to(process[number % 2])
        if number % 5 == 0:
            sync(process[0])
    if is_closed:
        process.log.close()
    assert len(process.paths(".queue")) > 1
    return process


class CountedPartitions(dict[int, SlotId]):
    added = 0

    def update(self, *others: Any, **named: Any) -> None:
        self.added += sum(map(len, others))
        super().update(*others, **named)


def test_the_partitions_of_a_file_are_collected_once(tmp_path: Path) -> None:
    """Once for each frame, they took minutes of a doctor's check of 20,000 partitions."""
    process = Process(tmp_path, file_bytes=1 << 20)
    for number in range(200):
        append_to(process[number % 20])
    process.log.close()
    check = CommitLogCheck(Disk(), str(tmp_path), NAMES)
    check._partitions = partitions = CountedPartitions()
    check.run()
    assert (len(partitions), partitions.added) == (20, 20)


def test_a_run_in_all_states_has_no_issue_but_what_a_start_removes(tmp_path: Path) -> None:
    process = written(tmp_path, is_closed=False)
    before = {path: path.read_bytes() for path in process.paths("")}
    process[1].trim(process[1].end_offset)
    truncate_engine(process[0], 2)
    clean(process)
    run = max(path for path in process.paths(".clog") if "-" in path.name)
    assert issues_of(tmp_path) == []
    queue = run.with_suffix(".queue").read_bytes()
    run.with_suffix(".queue").unlink()
    assert [issue for issue in issues_of(tmp_path) if issue.severity != Severity.HARMLESS] == []
    gone = [path for path in before if not path.exists()]
    for path in gone:
        path.write_bytes(before[path])
    unfinished = issues_of(tmp_path)
    assert {issue.severity for issue in unfinished} == {Severity.HARMLESS}
    assert str(run) in {issue.path for issue in unfinished}
    run.with_suffix(".queue").write_bytes(queue)
    replaced = issues_of(tmp_path)
    assert {issue.severity for issue in replaced} == {Severity.HARMLESS}
    assert {issue.path for issue in replaced} == {str(path) for path in gone if path.suffix == ".clog"}


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_intact_commit_log_has_no_issues(tmp_path: Path, *, is_closed: bool) -> None:
    written(tmp_path, is_closed=is_closed)
    assert issues_of(tmp_path) == []


def test_random_histories_have_no_issues(tmp_path: Path) -> None:
    seed = seed_of()
    print(f"SEED={seed}")
    random = Random(seed)
    for number in range(20):
        process = Process(tmp_path / str(number))
        for _ in range(random.randrange(1, 60)):
            engine = process[random.randrange(3)]
            action = random.randrange(13)
            if action == 0 and engine.end_offset:
                truncate_engine(engine, random.randint(engine.start_offset, engine.end_offset))
            elif action == 1:
                reset_engine(engine, engine.end_offset + random.randrange(5))
            elif action == 2:
                sync(engine)
            elif action == 3:
                engine.roll(0)
            elif action == 4:
                engine.trim(random.randint(engine.start_offset, engine.end_offset))
            elif action == 5:
                clean(process)
            else:
                append_to(engine, size=random.choice((200, 400, 900)))
        if random.random() < 0.5:
            process.log.close()
        assert issues_of(tmp_path / str(number)) == []
        for stored in stored_slots(str(tmp_path / str(number))):
            assert slot_issues(tmp_path / str(number), stored) == []


def test_offsets_that_a_compaction_has_removed_are_no_loss(tmp_path: Path) -> None:
    """The topic was compacted before its partitions moved to the commit log."""
    process = Process(tmp_path)
    append(process[0], batch(0))
    append(process[0], batch(7))
    process.log.close()
    (stored,) = stored_slots(str(tmp_path))
    (issue,) = slot_issues(tmp_path, stored, Checkpoint(first_dirty_offset=0))
    assert (issue.severity, issue.text) == (Severity.NOTE, "Offsets 1 to 6 are missing, as compaction leaves it.")
    (issue,) = slot_issues(tmp_path, stored)
    assert (issue.severity, issue.text) == (Severity.LOSS, "Offsets 1 to 6 are missing.")
    assert issues_of(tmp_path) == []


def test_a_run_has_no_issues(tmp_path: Path) -> None:
    process = written(tmp_path, is_closed=False)
    process[0].roll(0)
    process[0].trim(process[0].end_offset)
    process.log.close()
    clean(process)
    assert [path for path in process.paths(".clog") if "-" in path.name]
    assert issues_of(tmp_path) == []


def test_bytes_that_were_not_durable_are_harmless_at_the_end(tmp_path: Path) -> None:
    process = written(tmp_path, is_closed=False)
    with open(process.log.files[-1].path, "ab") as file:
        file.write(b"\xc1\x0f torn")
    [issue] = issues_of(tmp_path)
    assert issue.severity == Severity.HARMLESS
    assert "A start removes them" in issue.text


def test_damage_in_a_sealed_file_names_the_partitions_that_it_costs(tmp_path: Path) -> None:
    process = written(tmp_path, is_closed=True)
    [first, *_] = process.log.files
    reader = process[0]
    file, entry = next(iter(reader.view().entries_from(0)))
    assert file is first
    damage(Path(first.path), entry.position + entry.size - 1)
    [issue] = issues_of(tmp_path)
    assert issue.severity == Severity.LOSS
    assert issue.text.endswith(": t-0.")


def test_a_lost_frame_is_a_gap_in_the_chain_of_its_partition(tmp_path: Path) -> None:
    process = written(tmp_path, is_closed=False)
    sync(process[0])
    append_to(process[1])
    append_to(process[1])
    last = process.log.files[-1]
    position = unpack_entries(last.slices[process[0]._slot.number].packed)[0].position
    damage(Path(last.path), position + 80)
    found = issues_of(tmp_path)
    assert {issue.severity for issue in found} == {Severity.LOSS}
    assert any("t-0 lost its records from offset" in issue.text for issue in found)
    assert not any("t-1" in issue.text for issue in found)


def test_a_queue_file_that_is_not_that_of_its_log_is_reported(tmp_path: Path) -> None:
    process = written(tmp_path, is_closed=True)
    queue = process.paths(".queue")[0]
    other = Process(tmp_path / "other")
    for _ in range(24):
        append_to(other[0])
        append_to(other[1], size=100)
    other.log.close()
    queue.write_bytes(other.paths(".queue")[0].read_bytes())
    assert any("are not those of" in issue.text for issue in issues_of(tmp_path))
    queue.write_bytes(b"BCLQ")
    assert [(issue.severity, issue.path) for issue in issues_of(tmp_path)] == [(Severity.HARMLESS, str(queue))]
