"""The simulators find every planted bug."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pytest

import tests.simulation.cluster.planted_bugs
import tests.simulation.commitlog.planted_bugs
import tests.simulation.coordinators.planted_bugs
import tests.simulation.quorum.planted_bugs
from tests.simulation.cluster.simulator import simulate as simulate_cluster
from tests.simulation.commitlog.simulator import simulate as simulate_commit_logs
from tests.simulation.coordinators.simulator import simulate as simulate_coordinators
from tests.simulation.quorum.simulator import simulate as simulate_quorum
from tests.simulation.runner import PlantedBug, Simulate, bugs_in, finds
from tests.simulation.storage.planted_bugs import COMPACTION_BUGS, PLANTED_BUGS
from tests.simulation.storage.simulator import simulate as simulate_storage

pytestmark = pytest.mark.pure_python("plants bugs into compiled modules")


class Search(NamedTuple):
    """The planted bugs of a part, and the seeds that find them."""

    simulate: Simulate
    bugs: Sequence[PlantedBug]
    seeds: int
    """The number of first seeds; nearly all bugs are found within ten."""
    first_seed: Mapping[str, int]
    """A seed that finds a bug which the first seeds do not find; it runs first."""


SEARCHES = {
    "storage": Search(simulate_storage, [bug for bug in PLANTED_BUGS if bug.__name__ not in COMPACTION_BUGS], 2000, {}),
    "compaction": Search(
        partial(simulate_storage, is_compacting=True),
        [bug for bug in PLANTED_BUGS if bug.__name__ in COMPACTION_BUGS],
        2000,
        {},
    ),
    "commitlog": Search(
        simulate_commit_logs,
        bugs_in(tests.simulation.commitlog.planted_bugs),
        600,
        {
            "a_run_is_used_before_the_deletions_are_durable": 3348,
            "a_sync_skips_finished_files": 691,
            "deleted_partitions_stay_in_the_catalog": 951,
            "files_behind_the_end_of_the_log_stay": 3025,
            "the_states_of_replaced_files_are_forgotten": 927,
        },
    ),
    "coordinators": Search(simulate_coordinators, bugs_in(tests.simulation.coordinators.planted_bugs), 100, {}),
    "quorum": Search(
        simulate_quorum,
        bugs_in(tests.simulation.quorum.planted_bugs),
        150,
        {
            "votes_are_not_persisted": 408,
            "votes_are_sent_before_they_are_durable": 23,
            "logs_are_compared_by_offset_only": 378,
            "responses_to_earlier_requests_are_accepted": 524,
            "voter_changes_overlap": 30,
        },
    ),
    "cluster": Search(
        simulate_cluster,
        bugs_in(tests.simulation.cluster.planted_bugs),
        60,
        {
            "the_high_watermark_ignores_joining_replicas": 69,
            "records_count_before_they_are_durable": 8,
            "fetch_epochs_are_not_compared": 3,
            "alter_partition_ignores_epochs": 138,
            "a_new_controller_ignores_uncommitted_records": 1,
            "a_controller_leads_before_its_earlier_appends_are_written": 1,
            "metadata_counts_before_it_is_durable": 3,
            "snapshots_miss_the_last_record": 1,
        },
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "plant"),
    [pytest.param(part, bug, id=f"{part}-{bug.__name__}") for part, search in SEARCHES.items() for bug in search.bugs],
)
def test_a_planted_bug_is_found(part: str, plant: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    search = SEARCHES[part]
    plant(monkeypatch)
    first = search.first_seed.get(plant.__name__, 0)
    assert finds(search.simulate, (first, *range(search.seeds)))
