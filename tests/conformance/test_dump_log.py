"""`barnabas dump-log` prints the same lines as Apache Kafka's DumpLogSegments."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import storage.directories.commit_logs
from broker.cli import main
from broker.tools.commands import dump_log
from tests.support.data_directory import make_data_directory
from tests.support.kafka import needs_kafka, run_tool

DUMP = "org.apache.kafka.tools.DumpLogSegments"
PLAIN = ("plain-*/*.*", "split-*/*.*", "packed-*/*.*", "trimmed-*/*.*")
METADATA = ("__cluster_metadata-0/*.log", "__cluster_metadata-0/*.checkpoint", "bootstrap.checkpoint")
GROUPS = ("__consumer_offsets-*/*.log",)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "data"
    make_data_directory(path)
    return path


def ours(data: Path, *args: str) -> tuple[list[str], str, int]:
    """Output lines, errors and exit code of `barnabas dump-log`."""
    with contextlib.chdir(data):
        done = CliRunner().invoke(dump_log, args)
    return done.stdout.splitlines(), done.stderr, done.exit_code


def kafkas(data: Path, *args: str) -> list[str]:
    """Output lines of Kafka's tool, with relative paths."""
    names = [str(data / name) for name in args[-1].split(",")]
    done = run_tool(DUMP, *args[:-1], ",".join(names))
    return done.stdout.replace(f"{data}/", "").splitlines()


def files(data: Path, patterns: tuple[str, ...]) -> str:
    """The files that match, comma-separated."""
    found = [str(path.relative_to(data)) for pattern in patterns for path in sorted(data.glob(pattern))]
    return ",".join(name for name in found if not name.endswith("partition.metadata"))


CASES = [
    ((), PLAIN),
    (("--deep-iteration",), PLAIN),
    (("--print-data-log",), PLAIN),
    (("--print-data-log", "--skip-record-metadata"), PLAIN),
    (("--deep-iteration", "--skip-record-metadata"), PLAIN),
    (("--index-sanity-check",), PLAIN),
    (("--verify-index-only",), PLAIN),
    (("--cluster-metadata-decoder",), METADATA),
    (("--cluster-metadata-decoder", "--skip-record-metadata"), METADATA),
    (("--offsets-decoder",), GROUPS),
    (("--offsets-decoder", "--skip-record-metadata"), GROUPS),
]


@needs_kafka
@pytest.mark.parametrize(("options", "patterns"), CASES, ids=lambda value: " ".join(value) or "batches")
def test_the_dump_equals_kafkas(data: Path, options: tuple[str, ...], patterns: tuple[str, ...]) -> None:
    args = (*options, "--files", files(data, patterns))
    lines, complaints, status = ours(data, *args)
    assert len(lines) > 3
    assert lines == kafkas(data, *args)
    assert (complaints, status) == ("", 0)


@needs_kafka
def test_the_dump_of_a_damaged_file_equals_kafkas(data: Path, tmp_path: Path) -> None:
    """A wrong CRC, a torn batch at the end, an index entry with a wrong offset."""
    broken = shutil.copytree(data, tmp_path / "broken")
    log = broken / "plain-1/00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(content + content[:40])
    index = broken / "split-0/00000000000000000000.index"
    entries = bytearray(index.read_bytes())
    entries[11] ^= 1
    index.write_bytes(entries)
    args = ("--files", "plain-1/00000000000000000000.log,split-0/00000000000000000000.index")
    lines, complaints, status = ours(broken, *args)
    assert sum(line.endswith("isvalid: false") for line in lines) == 1
    assert "Found 40 invalid bytes at the end of 00000000000000000000.log" in lines
    assert lines == kafkas(broken, *args)
    assert status == 1
    assert "log offset:" in complaints


@needs_kafka
@pytest.mark.parametrize("partition", ["plain-0", "packed-0", "split-0", "trimmed-0"])
def test_the_dump_of_a_commit_log_equals_kafkas_of_the_converted_segments(
    partition: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches and records, apart from their positions in the files."""
    monkeypatch.setattr(storage.directories.commit_logs, "FILE_BYTES", 1 << 14)
    copy = shutil.copytree(data, tmp_path / "copy")
    assert main(["convert", "--log-dir", str(copy), "--to", "commitlog"]) == 0
    logs = [str(path.relative_to(copy)) for path in sorted((copy / "commitlog").glob("*.clog"))]
    lines, complaints, status = ours(copy, "--print-data-log", "--partition", partition, *logs)
    assert (complaints, status) == ("", 0)
    assert main(["convert", "--log-dir", str(copy), "--to", "segments"]) == 0
    expected = kafkas(copy, "--print-data-log", "--files", files(copy, (f"{partition}/*.log",)))
    assert contents(lines) == contents(expected)
    assert len(contents(lines)) > 20


def contents(lines: list[str]) -> list[str]:
    return [re.sub(r"position: \d+ ", "", line) for line in lines if line.startswith(("baseOffset:", "|"))]
