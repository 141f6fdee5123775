"""An image archive, built, unpacked and run without an engine: its layers in a folder, its command in namespaces of this host.

RULES    1. Layers are applied in order; `.wh.NAME` deletes NAME, `.wh..wh..opq` empties its folder.
         2. The command is process 1 of its PID namespace, has the image's user, variables and working directory, and no
            capability. It shares the caller's network.
         3. A volume is a folder of this host, mounted in the process's own mount namespace: it vanishes with the process.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
CANNOT = 2
"""The exit status of a builder that lacks tools or rights."""
_BUILD_S = 1500
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def run_builder(script: str, target: Path) -> None:
    """Runs a program of docker/ that writes `target`; skips the test if this machine cannot."""
    command = [sys.executable, str(DOCKER / script), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]


class OciImage:
    """An image, unpacked into `folder`."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.root = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        with tarfile.open(archive) as files:
            index = json.loads(_read(files, "index.json"))
            manifest = json.loads(_blob(files, index["manifests"][0]))
            self.config: dict[str, Any] = json.loads(_blob(files, manifest["config"]))["config"]
            """With Docker's names: Entrypoint, Env, Healthcheck, StopSignal, User, Volumes, WorkingDir."""
            for layer in manifest["layers"]:
                self._apply(gzip.decompress(_blob(files, layer)))

    def _apply(self, layer: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(layer)) as files:
            kept = []
            for member in files:
                folder, name = os.path.split(member.name)
                if name == _OPAQUE:
                    for path in (self.root / folder).iterdir():
                        _delete(path)
                elif name.startswith(_WHITEOUT):
                    _delete(self.root / folder / name.removeprefix(_WHITEOUT))
                else:
                    kept.append(member)
            for member in kept:  # a link over a folder of a lower layer would be refused
                if not member.isdir() and (self.root / member.name).exists():
                    _delete(self.root / member.name)
            files.extractall(self.root, kept, filter="fully_trusted")  # our own build

    def command(self, words: Sequence[str] = (), volumes: Mapping[str, Path] | None = None) -> list[str]:
        """The command line of the image's entry point, or of other words; `volumes` are this host's, by their mount point."""
        mounts = "".join(
            f'mkdir -p "$ROOT{inside}" && mount --bind "{outside}" "$ROOT{inside}" && '
            for inside, outside in (volumes or {}).items()
        )
        script = (
            'mount -t proc proc "$ROOT/proc" && mount --rbind /dev "$ROOT/dev" && touch "$ROOT/etc/hosts" && '
            f'mount --bind /etc/hosts "$ROOT/etc/hosts" && {mounts}exec "$@"'
        ).replace("$ROOT", str(self.root))
        inside = ("chroot", f"--userspec={self.config['User']}", "--groups=", str(self.root), "env", "-C")
        spaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh")
        return [*spaces, *inside, self.config["WorkingDir"], *(words or self.config["Entrypoint"])]

    def variables(self, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """The image's environment variables, and those of the run."""
        return {**dict(text.split("=", 1) for text in self.config["Env"]), **(own or {})}


def first_process(unshare: int) -> int:
    """Process 1 of the PID namespace that this process of `command` made, by its number on this host."""
    (pid,) = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    return int(pid)


def _read(files: tarfile.TarFile, name: str) -> bytes:
    file = files.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file.read()


def _blob(files: tarfile.TarFile, entry: Mapping[str, Any]) -> bytes:
    content = _read(files, f"blobs/{entry['digest'].replace(':', '/')}")
    assert len(content) == entry["size"]
    return content


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
