"""The walk in docs/security.md: its commands, as printed, make a closed cluster. Only ports are replaced."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.cluster import free_ports

pytestmark = pytest.mark.long
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SECTION = PAGE.read_text().partition("## A closed cluster in ten minutes\n")[2].partition("\n## ")[0]
COMMANDS = "".join(re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))
STRICT = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
PORTS = ("29091", "29092", "29093", "29191", "29192", "29193")


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the cluster and what the commands printed."""
    folder = tmp_path_factory.mktemp("walk")
    commands = with_free_ports(COMMANDS)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", STRICT + commands],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    logs = "\n".join(path.read_text()[-3000:] for path in folder.glob("closed-cluster/node?.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return folder / "closed-cluster", done.stdout


def with_free_ports(commands: str) -> str:
    """The page writes a node's port as 2909$n: each such line gets the ports of all nodes."""
    free = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    for start in ("2909", "2919"):
        choice = " ".join(str(free[f"{start}{n}"]) for n in (1, 2, 3))
        commands = commands.replace(f"{start}$n", f"$(set -- {choice}; echo ${{!n}})")
    for port, number in free.items():
        commands = commands.replace(port, str(number))
    return commands


def test_the_user_works_and_all_others_are_refused(walk: tuple[Path, str]) -> None:
    lines = [line for line in walk[1].splitlines() if line.startswith(("app read", "a", "another"))]
    assert "app read one order" in lines
    refused = [line for line in lines if " was " in line]
    assert len(refused) == 3
    assert all("was refused: " in line for line in refused), refused
    assert "another topic was refused: TopicAuthorizationFailedError" in refused


def test_no_other_user_of_the_machine_can_read_what_it_wrote(walk: tuple[Path, str]) -> None:
    for path in [walk[0], *walk[0].rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_no_password_is_logged(walk: tuple[Path, str]) -> None:
    settings = (walk[0] / "node1.properties").read_text()
    (password,) = re.findall(r'password="(.*?)"', settings)
    for number in (1, 2, 3):
        log = (walk[0] / f"node{number}.log").read_text()
        assert log
        assert password not in log
