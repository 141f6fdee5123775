"""The Debian package: built from the Dockerfile's environment, installed into a Debian of its own, run as its service is.

RULES    1. The installation makes the user, protects the settings, and starts nothing.
         2. The unit's command runs from the installed files, as that user.
         3. A removal leaves settings and data.
NOT HERE The unit (tests/process/test_systemd.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from barnabas.cluster import free_ports
from tests.packaging.test_containers import DOCKER
from tests.support.oci_image import OciImage, first_process, run_builder

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # the first test waits for the build

UNIT = DOCKER.parent / "config" / "systemd" / "barnabas.service"
PATHS = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
LARGEST = 30_000_000


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    run_builder("build_package.py", folder)
    (path,) = folder.glob("barnabas_*.deb")
    return path


@pytest.fixture(scope="module")
def debian(archive: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> OciImage:
    """The image without its node and user, with the package at /tmp."""
    found = OciImage(archive, tmp_path_factory.mktemp("debian"))
    shutil.rmtree(found.root / "opt" / "barnabas")
    shutil.copy(package, found.root / "tmp" / "barnabas.deb")
    found.config["User"], found.config["WorkingDir"] = "0:0", "/"
    inside(found, "userdel", "barnabas")
    inside(found, "dpkg", "--install", "/tmp/barnabas.deb")
    return found


def inside(debian: OciImage, *words: str) -> str:
    """Runs a command in the Debian; returns its output."""
    done = subprocess.run(debian.command(words), env=PATHS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_package_is_small_and_its_settings_are_conffiles(package: Path, debian: OciImage) -> None:
    assert package.stat().st_size < LARGEST
    shown = inside(debian, "dpkg-query", "--show", "--showformat=${Status}|${Conffiles}", "barnabas")
    assert shown.startswith("install ok installed|")
    assert re.findall(r"/etc/\S+", shown) == ["/etc/barnabas/server.properties", "/etc/barnabas/barnabas.env"]


def test_the_installation_makes_the_user_and_protects_the_settings(debian: OciImage) -> None:
    user = inside(debian, "getent", "passwd", "barnabas").split(":")
    group = int(user[3])
    for name in ("server.properties", "barnabas.env"):
        found = (debian.root / "etc" / "barnabas" / name).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, group, 0o640)
    assert int(user[2]) < 1000, "a system user"


def test_the_units_command_runs_from_the_package_and_survives_its_removal(debian: OciImage) -> None:
    """Rules 2 and 3; systemd makes the state directory."""
    user, group = (int(text) for text in inside(debian, "getent", "passwd", "barnabas").split(":")[2:4])
    state = debian.root / "var" / "lib" / "barnabas"
    state.mkdir()
    os.chown(state, user, group)
    client, controller = free_ports(2)
    options = (
        f"--set listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller} "
        f"--set controller.quorum.bootstrap.servers=127.0.0.1:{controller}"
    )
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    debian.config["User"], debian.config["WorkingDir"] = f"{user}:{group}", "/var/lib/barnabas"
    words = line.replace("$BARNABAS_OPTIONS", options).split()
    with subprocess.Popen(debian.command(words), env=PATHS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if ready:
            os.kill(first_process(process.pid), 15)
        assert ready.startswith(f"barnabas ready on 127.0.0.1:{client} ")
        assert process.wait(60) == 0
    debian.config["User"], debian.config["WorkingDir"] = "0:0", "/"
    inside(debian, "dpkg", "--remove", "barnabas")
    assert not (debian.root / "opt" / "barnabas").exists()
    assert (debian.root / "etc" / "barnabas" / "server.properties").exists()
    assert (state / "barnabas-data" / "meta.properties").exists()
