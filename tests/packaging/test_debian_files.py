"""docker/debian: what can be said of the package's files without building it (tests/packaging/test_package.py builds it)."""

from __future__ import annotations

import re
from pathlib import Path

DOCKER = Path(__file__).parents[2] / "docker"
CONTROL = DOCKER / "debian" / "control"


def test_the_package_depends_on_the_command_that_its_environment_links_to() -> None:
    """A virtual environment's interpreter is a link to the command that has made it."""
    (command,) = re.findall(r"(\S+) -m venv --without-pip /opt/barnabas", (DOCKER / "Dockerfile").read_text())
    (depends,) = re.findall("^Depends: (.*)$", CONTROL.read_text(), re.MULTILINE)
    assert command in [one.split()[0] for one in depends.split(", ")]
