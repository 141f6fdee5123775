"""The clients of the suite: how each driver is built and started, or why it is unavailable.

RULES    1. Builds are cached in the user's cache directory, keyed by the driver's sources.
         2. A missing toolchain makes a client unavailable, with the reason; a failed build is an error.
NOT HERE The drivers' code (their own sources), versions (go.mod, package.json, Cargo.toml, constraints.txt).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.support.kafka import COPY, KAFKA_VERSION, QUICK_JVM, java_command, kafka_home, why_no_kafka


class Client(NamedTuple):
    """A client library with its driver; `command` builds it if necessary and may raise `ToolchainMissing`.

    `is_quick` is whether the build takes only seconds, `has_security` whether the driver can authenticate and use TLS.
    """

    name: str
    language: str
    command: Callable[[], list[str]]
    is_quick: Callable[[], bool] = lambda: True
    has_security: bool = True


class ToolchainMissing(RuntimeError): ...


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.conformance.python.{module}"]


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas" / "conformance"
HERE = Path(__file__).parent.parent


def _tool(name: str, what: str) -> str:
    """The path of a toolchain's program; raises `ToolchainMissing`."""
    found = shutil.which(name)
    if found is None:
        raise ToolchainMissing(f"no {name} on the path: install {what}")
    return found


def _run(command: list[str], where: Path, **environment: str) -> None:
    """Runs a build step; raises with the end of its output if it fails."""
    done = subprocess.run(
        command,
        cwd=where,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-3000:].decode(errors="replace")
        raise RuntimeError(f"{' '.join(command)} failed in {where}:\n{output}")


def _go(client: str) -> list[str]:
    program = CACHE / "go-driver"
    _run([_tool("go", "Go 1.26"), "build", "-o", str(program), "."], HERE / "go")
    return [str(program), client]


def _java(version: str) -> list[str]:
    if (reason := why_no_kafka()) is not None:
        raise ToolchainMissing(reason)
    compiler = _tool("javac", "a JDK 17")
    jars = _jars(version)
    sources = sorted((HERE / "java" / "driver").glob("*.java"))
    classes = CACHE / f"java-{version}-{_digest(sources)}"
    if not classes.exists():
        with _atomic_folder(classes) as folder:
            _run([compiler, "-nowarn", "-d", str(folder), "-cp", jars, *map(str, sources)], HERE)
    return [str(java_command()), *QUICK_JVM, "-cp", f"{classes}:{jars}", "Driver"]


def _jars(version: str) -> str:
    """The class path: the tests' Kafka version, or the jars of an older client with a JSON reader."""
    libs = kafka_home() / "libs"
    if version == KAFKA_VERSION:
        return str(libs / "*")
    older = CACHE / f"kafka-clients-{version}"
    if not older.exists():
        with _atomic_folder(older) as folder:
            pom = shutil.copy(HERE / "java" / "driver" / "pom.xml", folder / "pom.xml")
            maven = [_tool("mvn", "Maven"), "-q", "-B", "-Dstyle.color=never", "-f", str(pom), COPY]
            _run([*maven, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"], folder)
    return ":".join([str(older / "*"), *map(str, sorted(libs.glob("jackson-*.jar")))])


def _node(program: str) -> list[str]:
    node, npm = _tool("node", "Node 20"), _tool("npm", "npm")
    files = sorted([*(HERE / "node").glob("*.mjs"), HERE / "node" / "package.json"])
    made = CACHE / f"node-{_digest(files)}"
    if not made.exists():
        with _atomic_folder(made) as folder:
            for file in files:
                shutil.copy(file, folder)
            _run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"], folder)
    return [node, str(made / program)]


def _rust() -> list[str]:
    """Built in the cache, so that no Cargo.lock appears among the sources; cargo decides what is up to date."""
    cargo = _tool("cargo", "Rust")
    _tool("cc", "a C compiler: librdkafka is built from source")
    workshop = CACHE / "rust"
    shutil.copytree(HERE / "rust", workshop, dirs_exist_ok=True, copy_function=_copy_if_changed)
    _run([cargo, "build", "--quiet", "--release"], workshop)
    return [str(workshop / "target" / "release" / "barnabas-conformance")]


def _copy_if_changed(source: str, target: str) -> None:
    """Copies a changed file only, since cargo compares modification times."""
    if not Path(target).exists() or Path(source).read_bytes() != Path(target).read_bytes():
        shutil.copy(source, target)


def _is_rust_built() -> bool:
    return (CACHE / "rust" / "target" / "release" / "barnabas-conformance").exists()


@contextlib.contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` when the block has succeeded."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as work:
        made = Path(work) / "made"
        made.mkdir()
        yield made
        made.rename(folder)


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


CLIENTS = (
    Client("kafka-python", "Python", partial(_python, "kafka_python")),
    Client("aiokafka", "Python", partial(_python, "aiokafka_driver")),
    Client("confluent-kafka", "Python", partial(_python, "confluent")),
    Client("kafka-clients 4.3", "Java", partial(_java, KAFKA_VERSION)),
    Client("kafka-clients 3.9", "Java", partial(_java, "3.9.1")),
    Client("kafkajs", "Node", partial(_node, "kafkajs.mjs")),
    Client("franz-go", "Go", partial(_go, "franz-go")),
    Client("sarama", "Go", partial(_go, "sarama")),
    Client("rdkafka", "Rust", _rust, _is_rust_built, has_security=False),
)


def available(clients: Iterable[Client]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The commands of the available clients, and the reasons why the others are unavailable."""
    commands, absent = {}, {}
    for client in clients:
        try:
            commands[client.name] = client.command()
        except ToolchainMissing as why:
            absent[client.name] = str(why)
    return commands, absent
