"""Builds docker/Dockerfile without an engine, and writes the image as one archive: `make image`.

    sudo python docker/build_image.py dist/barnabas-image.tar

FORMAT   An OCI layout in a tar file (index.json, oci-layout, blobs/), with the manifest.json of `docker save` beside it: for
         podman, skopeo, containerd and every `docker load` read it.
RULES    1. The Dockerfile is the only description of the image: buildah runs its instructions, in chroots of this host.
         2. No registry is asked. The base image is made of Debian's packages, in the way of debian:bookworm-slim, and kept in
            the build folder; delete the folder to renew it.
         3. pip runs on this host, with its settings; the build gets wheels only, with the versions of constraints.txt.
         4. Blobs are compressed without time stamps. OCI has no health check: as in BuildKit's images, the config keeps
            Docker's field.
         5. The archive is kept in the build folder until a file that it is made of changes. Builds in one checkout wait for
            each other.
NOT HERE What the archive is tested for (tests/packaging/test_image.py).
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "image"
BASE: Final = "docker.io/library/debian:bookworm-slim"
NAME: Final = "docker.io/library/barnabas:latest"
PYTHON: Final = "3.11"
"""Debian 12's."""
_TOOLS: Final = ("buildah", "mmdebstrap")
_LEFT_OUT: Final = ("doc", "man", "locale", "info", "lintian", "groff")
"""Folders of /usr/share, but for copyright files."""
_MOUNTED: Final = "/media"
"""Where the build sees the wheels: an existing folder, since a mount point would remain in the image."""
_OCI: Final = "application/vnd.oci.image"


def why_not() -> str | None:
    """Why this host cannot build the image; None if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; on Debian: apt-get install {' '.join(missing)}"
    return "images are built as root" if os.geteuid() != 0 else None


def main() -> int:
    """Builds the image into the file that the command line names."""
    reason = why_not()
    if reason is not None or len(sys.argv) != 2:
        sys.stderr.write(f"build_image.py: {reason or 'usage: build_image.py FILE'}\n")
        return 2
    target = Path(sys.argv[1]).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock():
        shutil.copyfile(build(), target)
    sys.stdout.write(f"{target}: {target.stat().st_size / 1e6:.1f} MB\n")
    return 0


@contextmanager
def lock() -> Iterator[None]:
    """Waits for another build of this checkout (rule 5)."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def buildah(*words: str) -> str:
    """Runs buildah on storage of our own; returns its output."""
    storage = ["--root", str(FOLDER / "storage"), "--runroot", str(FOLDER / "run")]
    done = subprocess.run(["buildah", *storage, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def _make_base() -> None:
    """The base image of the Dockerfile, once (rule 2)."""
    if BASE in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    files = FOLDER / "base.tar"
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--include=usr-is-merged"),
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",  # instead of usrmerge, which needs all of perl
            *excluded,
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--customize-hook=rm -rf $1/var/lib/apt/lists/* $1/var/cache/* $1/var/log/*",
            *("bookworm", str(files), "http://deb.debian.org/debian"),
        ],
        check=True,
    )
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(files), "/")
    buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    buildah("commit", "--quiet", "--rm", container, BASE)
    files.unlink()


def _download_wheels() -> None:
    """What the Dockerfile installs, and what builds our wheel, for the image's Python (rule 3)."""
    shutil.rmtree(FOLDER / "wheels", ignore_errors=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    kinds = [f"manylinux_2_{minor}" for minor in range(36, 4, -1)] + ["manylinux2014", "manylinux2010", "manylinux1"]
    tags = [f"--platform={kind}_{platform.machine()}" for kind in kinds]
    interpreter = [
        f"--python-version={PYTHON}",
        "--implementation=cp",
        f"--abi=cp{PYTHON.replace('.', '')}",
        "--abi=abi3",
    ]
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "download",
                "--quiet",
                "--dest",
                FOLDER / "wheels",
            ),
            *("--constraint", ROOT / "constraints.txt", "--only-binary=:all:", *interpreter, "--abi=none", *tags),
            *wanted,
        ],
        check=True,
    )
    (FOLDER / "wheels" / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {_MOUNTED}\n")


def build() -> Path:
    """Builds the image into the storage of the build folder, and its archive, which is returned (rule 5). Needs the lock."""
    archive = FOLDER / f"{_content_key()}.tar"
    if archive.exists():
        return archive
    for outdated in FOLDER.glob("*.tar"):
        outdated.unlink()
    _make_base()
    _download_wheels()
    buildah(
        *("build", "--isolation=chroot", "--format=docker", "--pull-never", "--layers", "--quiet"),
        *(f"--volume={FOLDER / 'wheels'}:{_MOUNTED}:ro", f"--build-arg=PIP_CONFIG_FILE={_MOUNTED}/pip.conf"),
        *(f"--file={ROOT / 'docker' / 'Dockerfile'}", f"--tag={NAME}", str(ROOT)),
    )
    _write_archive(archive.with_suffix(".new"))
    archive.with_suffix(".new").rename(archive)
    return archive


def _content_key() -> str:
    """A digest of the files that the image is made of: the build's context, the Dockerfile, and this program."""
    named = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    found = [ROOT / "docker" / "Dockerfile", Path(__file__)]
    for top in (ROOT / name for name in named):
        found += [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for path in sorted(path for path in found if "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _write_archive(target: Path) -> None:
    """The image as an archive that all engines read (rule 4)."""
    image = FOLDER / "pushed"
    shutil.rmtree(image, ignore_errors=True)
    buildah("push", "--quiet", "--disable-compression", NAME, f"dir:{image}")
    manifest = json.loads((image / "manifest.json").read_text())
    blobs: dict[str, bytes] = {}

    def add(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def read(entry: dict[str, Any]) -> bytes:
        return (image / entry["digest"].removeprefix("sha256:")).read_bytes()

    config = add(read(manifest["config"]), "config.v1+json")
    layers = [add(gzip.compress(read(layer), 6, mtime=0), "layer.v1.tar+gzip") for layer in manifest["layers"]]
    document = {"schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config, "layers": layers}
    entry = add(_as_json(document), "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": "latest"}
    paths = [f"blobs/{layer['digest'].replace(':', '/')}" for layer in layers]
    saved = [
        {"Config": f"blobs/{config['digest'].replace(':', '/')}", "RepoTags": ["barnabas:latest"], "Layers": paths}
    ]
    files = {
        "oci-layout": _as_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _as_json({"schemaVersion": 2, "manifests": [entry]}),
        "manifest.json": _as_json(saved),
        **blobs,
    }
    with tarfile.open(target, "w") as archive:
        for path, content in files.items():
            header = tarfile.TarInfo(path)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def _as_json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


if __name__ == "__main__":
    sys.exit(main())
