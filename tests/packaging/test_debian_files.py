"""docker/debian: what can be said of the package's files without building it (tests/packaging/test_package.py builds it)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
CONTROL, POSTINST = (DOCKER / "debian" / name for name in ("control", "postinst"))


def test_the_package_depends_on_the_command_that_its_environment_links_to() -> None:
    """A virtual environment's interpreter is a link to the command that has made it."""
    (command,) = re.findall(r"(\S+) -m venv --without-pip /opt/barnabas", (DOCKER / "Dockerfile").read_text())
    (depends,) = re.findall("^Depends: (.*)$", CONTROL.read_text(), re.MULTILINE)
    assert command in [one.split()[0] for one in depends.split(", ")]


@pytest.mark.parametrize("deleted", [None, "server.properties", "barnabas.env"])
def test_an_upgrade_protects_the_settings_that_the_operator_has_not_deleted(
    tmp_path: Path, deleted: str | None
) -> None:
    """dpkg does not restore a deleted conffile; the script must not fail for it."""
    settings = tmp_path / "etc"
    settings.mkdir()
    files = [settings / name for name in ("server.properties", "barnabas.env") if name != deleted]
    for file in files:
        file.write_text("")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("chgrp", "getent", "systemctl"):
        (commands / name).write_text(
            '#!/bin/sh\nfor path; do :; done\n[ "$0" != "${0%chgrp}" ] && exec test -e "$path"\nexit 0\n'
        )
        (commands / name).chmod(0o755)
    script = POSTINST.read_text().replace("/etc/barnabas", str(settings))
    path = f"{commands}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", script, "postinst", "configure"], env={"PATH": path}, check=True)
    assert [file.stat().st_mode & 0o777 for file in files] == [0o640] * len(files)
    assert settings.stat().st_mode & 0o777 == 0o750
