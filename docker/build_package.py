"""Builds the Debian package from the environment that docker/Dockerfile installs: `make deb`.

    sudo python docker/build_package.py dist/

RULES    1. The package contains the image's /opt/barnabas: image and package have the same files, and Debian 12's Python.
         2. Settings are conffiles: an upgrade asks before it replaces changed ones.
         3. The installation starts nothing: a node with the packaged settings serves every client that reaches it.
NOT HERE The unit (config/systemd/barnabas.service), the scripts of the package (docker/debian).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

import build_image

ROOT: Final = build_image.ROOT
CONFFILES: Final = {
    "etc/barnabas/server.properties": "config/server.properties",
    "etc/barnabas/barnabas.env": "config/systemd/barnabas.env",
}
UNIT: Final = "lib/systemd/system/barnabas.service"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def main() -> int:
    """Builds the package into the folder that the command line names."""
    reason = build_image.why_not() or (None if shutil.which("dpkg-deb") else "dpkg-deb is not installed")
    if reason is not None or len(sys.argv) != 2:
        sys.stderr.write(f"build_package.py: {reason or 'usage: build_package.py FOLDER'}\n")
        return 2
    with build_image.lock(), tempfile.TemporaryDirectory(prefix="barnabas-deb-") as folder:
        build_image.build()
        tree = Path(folder) / "tree"
        tree.mkdir(mode=0o755)
        _copy_environment(tree)
        _add_files(tree)
        target = Path(sys.argv[1]).absolute()
        target.mkdir(parents=True, exist_ok=True)
        words = ("dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(tree), str(target))
        sys.stdout.write(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return 0


def _copy_environment(tree: Path) -> None:
    """Rule 1."""
    container = build_image.buildah("from", "--pull-never", build_image.NAME)
    try:
        mounted = Path(build_image.buildah("mount", container))
        shutil.copytree(mounted / "opt" / "barnabas", tree / "opt" / "barnabas", symlinks=True)
    finally:
        build_image.buildah("rm", container)


def _add_files(tree: Path) -> None:
    for path, source in {**CONFFILES, UNIT: "config/systemd/barnabas.service"}.items():
        _add(tree / path, (ROOT / source).read_text(), 0o644)
    (tree / "usr" / "bin").mkdir(parents=True)
    (tree / "usr" / "bin" / "barnabas").symlink_to("/opt/barnabas/bin/barnabas")
    _add(tree / "DEBIAN" / "conffiles", "".join(f"/{path}\n" for path in CONFFILES), 0o644)
    for name in ("postinst", "prerm"):
        _add(tree / "DEBIAN" / name, (ROOT / "docker" / "debian" / name).read_text(), 0o755)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    size = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
    control = (ROOT / "docker" / "debian" / "control").read_text()
    architecture = _ARCHITECTURES[platform.machine()]
    _add(
        tree / "DEBIAN" / "control",
        control.format(version=f"{version}-1~deb12", architecture=architecture, kilobytes=size),
        0o644,
    )


def _add(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


if __name__ == "__main__":
    sys.exit(main())
