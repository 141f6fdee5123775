"""How fast the verbs are: a large topic is written, read and copied; records per second are printed, and no record is lost.

`python -m pytest -s tests/cli/test_speed.py` prints the figures of docs/cli.md: CPU time of the verbs, without the broker's.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from barnabas import Broker
from tests.support.loading import create, end_offsets
from tests.support.raw_client import RawClient

RECORDS = 300_000
PARTITIONS = 4
TIMEOUT_S = 300
BARNABAS = f"{sys.executable} -m barnabas"
SIZED = "%p %d %K{big32}%k%V{big32}%v"


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_a_large_topic_is_written_read_and_copied(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b'{"key":"key%05d","value":"%s"}\n' % (at, b"v" * 100) for at in range(RECORDS)))
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        create(client, "large", "copied", "sized", partitions=PARTITIONS)
        at = f"-b {broker.bootstrap} -q"
        for what, command in (
            ("produce, JSON lines", f"{BARNABAS} produce large {at} < {lines}"),
            ("consume, JSON lines", f"{BARNABAS} consume large {at} > {tmp_path}/json"),
            ("consume -f '%v\\n'", f"{BARNABAS} consume large {at} -f '%v\\n' > {tmp_path}/values"),
            ("consume -f, sizes", f"{BARNABAS} consume large {at} -f '{SIZED}' > {tmp_path}/sized"),
            ("produce -f, sizes", f"{BARNABAS} produce sized {at} -f '{SIZED}' < {tmp_path}/sized"),
            ("consume | produce", f"{BARNABAS} consume large {at} | {BARNABAS} produce copied {at}"),
        ):
            started, cpu = time.monotonic(), cpu_s()
            subprocess.run(command, shell=True, check=True, timeout=TIMEOUT_S)
            seconds, cpu = time.monotonic() - started, cpu_s() - cpu
            print(f"{what:22} {RECORDS / seconds:9,.0f} records/s, {RECORDS / cpu:9,.0f} per second of CPU time")
        assert (tmp_path / "json").read_bytes().count(b"\n") == RECORDS
        for topic in ("large", "copied", "sized"):
            assert end_offsets(client, topic, PARTITIONS) == end_offsets(client, "large", PARTITIONS)
        assert sum(end_offsets(client, "copied", PARTITIONS)) == RECORDS
