"""The storage engine of all brokers that tests start: `STORAGE_ENGINE=commitlog make kill`, or any other target.

NOT HERE Tests that name an engine themselves: their setting wins.
"""

from __future__ import annotations

import os
from typing import Any

from barnabas.embedded import Broker

SETTING = "barnabas.log.storage.engine"
SMALL_FILES = {"barnabas.commitlog.file.bytes": "4194304"}
"""Files are created ahead: those of 256 MiB of all brokers would fill the disk."""


_FILES = "it looks at segment files"
_KAFKA = "Apache Kafka does not start on a directory with a commit log"
_SMALL_REGIONS = "a Fetch from the commit log has regions so small that they are copied (decision 0108)"
SEGMENTS_ONLY = {
    "tests/conformance/test_acls.py::test_acls_that_one_broker_wrote_are_obeyed_by_the_other[barnabas-apache-kafka]": _KAFKA,
    "tests/conformance/test_alternating_brokers.py": _KAFKA,
    "tests/conformance/test_alternating_clusters.py": _KAFKA,
    "tests/conformance/test_dump_log.py": _FILES,
    "tests/conformance/test_dynamic_configs.py::test_the_next_segment_is_preallocated": _FILES,
    "tests/conformance/test_dynamic_configs.py::test_a_segment_rolls": _FILES,
    "tests/conformance/test_dynamic_configs.py::test_log_roll_ms": _FILES,
    "tests/conformance/test_flushing_and_rolling.py": _FILES,
    "tests/conformance/test_formatted_directories.py::test_a_formatted_directory_starts_both_brokers": _KAFKA,
    "tests/conformance/test_formatted_directories.py::test_unknown_metadata": _FILES,
    "tests/process/test_zero_copy.py::test_records_are_sent_by_sendfile": _SMALL_REGIONS,
    "tests/pipeline/sources/test_live_logs.py::test_segments_deleted_during_a_read": _FILES,
}
"""The first characters of the ids of tests that are skipped with another default engine, and the reason."""


def why_segments_only(test_id: str) -> str | None:
    """The reason to skip a test, if the default engine of this run is another one than segments."""
    if default_engine() == "segments":
        return None
    return next((reason for start, reason in SEGMENTS_ONLY.items() if test_id.startswith(start)), None)


def default_engine(environment: Any = os.environ) -> str:
    """The engine of brokers without a setting."""
    return environment.get("STORAGE_ENGINE") or "segments"


def use_engine_of(environment: Any = os.environ) -> None:
    """Set the default of every later broker to the variable STORAGE_ENGINE, if it is set."""
    engine = environment.get("STORAGE_ENGINE")
    if not engine:
        return
    create = Broker.__init__

    def created(self: Broker, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        self.settings.update({SETTING: engine, **SMALL_FILES, **self.settings})

    Broker.__init__ = created  # type: ignore[method-assign]
