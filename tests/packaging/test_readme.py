"""The README's examples work as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import barnabas
from tests.support.librdkafka import read_to_end

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_of_the_fixtures_passes(tmp_path: Path) -> None:
    """The first block is a test file."""
    (tmp_path / "test_example.py").write_text(EXAMPLES[0])
    outcome = run("-m", "pytest", "-q", "test_example.py", cwd=tmp_path)
    assert "1 passed" in outcome.stdout, outcome.stdout + outcome.stderr


def test_nothing_is_left_in_an_existing_cluster(tmp_path: Path) -> None:
    """Each test left a topic with four partitions there."""
    (tmp_path / "test_example.py").write_text(EXAMPLES[0])
    with barnabas.Broker() as broker:
        outcome = run("-m", "pytest", "-q", "--kafka-bootstrap", broker.bootstrap, "test_example.py", cwd=tmp_path)
        assert "1 passed" in outcome.stdout, outcome.stdout + outcome.stderr
        assert not list(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics)


def test_the_example_of_the_context_manager_runs(tmp_path: Path) -> None:
    """The second block is a program."""
    outcome = run("-c", EXAMPLES[1], cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", outcome.stdout)


def test_the_example_of_the_closed_broker_runs(tmp_path: Path) -> None:
    """The third block is a program."""
    outcome = run("-c", EXAMPLES[2], cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "0\n"


@pytest.mark.parametrize("target", re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", TEXT, re.MULTILINE))
def test_every_make_target_in_it_exists(target: tuple[str, str]) -> None:
    """`make help` lists them."""
    name = target[0] or target[1]
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_commands_of_a_terminal_run(tmp_path: Path) -> None:
    """In order, against one broker; the copy goes to another one. `top` runs until it is ended."""
    (block,) = re.findall(r"^## From a terminal\n.*?^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    commands = [
        line.partition("  # ")[0].partition(" # ")[0] for line in block.splitlines() if "barnabas top " not in line
    ]
    assert len(commands) >= 6
    printed = {}
    with barnabas.Broker() as broker, barnabas.Broker() as other:
        variables = {**os.environ, "BARNABAS_BOOTSTRAP": broker.bootstrap, "COLUMNS": "200"}
        variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        for command in commands:
            words = ["bash", "-o", "pipefail", "-c", command.replace("other:9092", other.bootstrap)]
            outcome = subprocess.run(
                words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False
            )
            assert outcome.returncode == 0, (command, outcome.stderr)
            printed[command] = outcome.stdout
        assert [message.value() for message in read_to_end(other.bootstrap, "orders")] == [b"hello"]
    assert '"value":"hello"' in printed[next(line for line in commands if "-o -10" in line)]
