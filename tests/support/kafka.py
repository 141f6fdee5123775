"""Apache Kafka as a reference: its jars, its tools, one node on this machine.

RULES    1. The jars are in $KAFKA_HOME/libs, by default ~/.cache/apache-kafka/libs; `make kafka-jars` installs them.
         2. A test that needs them is marked `@needs_kafka`, and its skip reason names what is missing.
         3. No JVM outlives the test that started it.
         4. `make kafka-jars` also makes an archive of the classes that a node loads (CDS): a node's start then takes
            2.2 s of CPU time instead of 3.7. A JVM with another version does without.
         5. Our own Java programs are compiled into the same folder, named by the digest of their sources.
         6. A directory is formatted by the JVM of its node if possible; a separate one would take another second.
NOT HERE Fetching Spark's jars (`barnabas/pipeline/spark/jars.py`).

`python -m tests.support.kafka` fetches the jars and makes the archive.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

from barnabas.cluster import free_ports
from protocol.messages.metadata import ApiVersionsRequest
from tests.support.raw_client import RawClient

HERE = Path(__file__).parent
NODE = HERE.parent / "conformance" / "java" / "Node.java"
KAFKA_VERSION = "4.3.1"
BROKER_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"
CONNECT_JAR, STREAMS_JAR = f"connect-file-{KAFKA_VERSION}.jar", f"kafka-streams-{KAFKA_VERSION}.jar"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
ARCHIVE = f"classes-{KAFKA_VERSION}.jsa"
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

QUICK_JVM = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For tools and tests: the quickest start."""
STOCK_JVM = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""As in Kafka's own start script: for measurements."""


def kafka_home() -> Path:
    return Path(os.environ.get("KAFKA_HOME") or Path.home() / ".cache" / "apache-kafka")


def java_command() -> str | None:
    """The `java` of JAVA_HOME if that is set, else of the path."""
    home = os.environ.get("JAVA_HOME")
    if home and (java := shutil.which(str(Path(home) / "bin" / "java"))):
        return java
    return shutil.which("java")


def kafka_classpath() -> str | None:
    """The class path of broker and tools; None without the jars."""
    libs = kafka_home() / "libs"
    return str(libs / "*") if (libs / BROKER_JAR).is_file() else None


def why_no_kafka() -> str | None:
    """Why Kafka's classes cannot run here; None if they can."""
    if java_command() is None:
        return "no java on the path: install a JDK 17"
    if kafka_classpath() is None:
        return f"no {BROKER_JAR} in {kafka_home() / 'libs'}: run make kafka-jars"
    return None


needs_kafka = pytest.mark.needs_kafka


def tool_command(cls: str, *args: object, jvm: Sequence[str] = QUICK_JVM, classes: Path | None = None) -> list[str]:
    """The command line that runs one class of Kafka, or one of `classes`."""
    java, classpath = java_command(), kafka_classpath()
    if java is None or classpath is None:
        pytest.skip(str(why_no_kafka()))
    archive = kafka_home() / ARCHIVE
    is_quick = tuple(jvm) == QUICK_JVM and archive.is_file()
    return [
        java,
        *jvm,
        *((f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if is_quick else ()),
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}",
        "-cp",
        classpath if classes is None else f"{classpath}{os.pathsep}{classes}",
        cls,
        *(str(arg) for arg in args),
    ]


def compile_java(source: Path) -> Path:
    """The folder with the classes of a program and of its own folder; compiled if they changed (rule 5).

    Skips the test without a compiler.
    """
    text = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.java")))
    key = hashlib.sha256(KAFKA_VERSION.encode() + text).hexdigest()[:16]
    classes = kafka_home() / "compiled" / f"{source.stem}-{key}"
    if classes.is_dir():
        return classes
    compiler, classpath = shutil.which("javac"), kafka_classpath()
    if compiler is None or classpath is None:
        pytest.skip("no javac on the path: install a JDK 17")
    classes.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=classes.parent) as work:
        made = Path(work) / "made"
        options = ["-cp", classpath, "-sourcepath", str(source.parent), "-d", str(made)]
        subprocess.run([compiler, "-nowarn", "-Xlint:none", *options, str(source)], check=True)
        try:
            made.rename(classes)
        except OSError:  # another process was first
            if not classes.is_dir():
                raise
    return classes


def run_tool(
    cls: str,
    *args: object,
    timeout_s: float = 60,
    input: str | None = None,  # noqa: A002 - the name that subprocess.run uses
    command_prefix: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs a tool to its end; the caller checks exit code and output."""
    return subprocess.run(
        [*command_prefix, *tool_command(cls, *args)],
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def free_port() -> int:
    """A free TCP port of 127.0.0.1."""
    (port,) = free_ports(1)
    return port


def combined_node(client: str, controller: str) -> dict[str, object]:
    """The roles and listeners of a broker and controller with these addresses."""
    listeners = f"PLAINTEXT://{client},CONTROLLER://{controller}"
    return {
        "process.roles": "broker,controller",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }


class ApacheKafka:
    """One node of Apache Kafka, broker and controller, during a `with` block.

    `with ApacheKafka({"num.partitions": 4}) as kafka: ... kafka.bootstrap`. A `data_dir` is kept, and is formatted only
    if it has no meta.properties: so a directory written by another broker can be opened too. With `is_static` the
    quorum's voters are a setting (kraft.version 0). `classes` is a folder of classes that settings may refer to.
    `command_prefix` is put before its commands, to run them elsewhere: then `address` is its listener's address.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        data_dir: Path | None = None,
        jvm: Sequence[str] = QUICK_JVM,
        is_static: bool = False,
        classes: Path | None = None,
        command_prefix: Sequence[str] = (),
        address: tuple[str, int] | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._classes = classes
        self._jvm = jvm
        self._is_static = is_static
        self._temporary = tempfile.TemporaryDirectory(prefix="apache-kafka-")
        self._work_dir = Path(self._temporary.name)
        self.data_dir = data_dir or self._work_dir / "data"
        self._entering = list(command_prefix)
        self.host, self.port = address or ("127.0.0.1", free_port())
        self.controller_port = free_port()
        self.log_path = self._work_dir / "server.log"
        self.start_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def controller(self) -> str:
        """The address of its controller for other nodes."""
        return f"{self.host}:{self.controller_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._temporary.cleanup()

    def start(self) -> None:
        """Formats the directory if necessary, starts, and waits until it responds."""
        command = self._command()
        started = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._entering, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_it_answers()
        self.start_s = time.monotonic() - started

    def format(self, *arguments: str) -> None:
        """Only formats the directory, as `kafka-storage format` with these arguments."""
        words = self._formatting(self._write_properties(), *arguments)
        formatted = run_tool("kafka.tools.StorageTool", *words, command_prefix=self._entering)
        if formatted.returncode != 0:
            raise RuntimeError(f"Kafka did not format {self.data_dir}: {formatted.stderr.strip()}")

    def stop(self) -> None:
        """Sends SIGTERM, and waits for its end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(sign)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _command(self) -> list[str]:
        """The command of the node, which also formats the directory where that is quicker (rule 6)."""
        properties = self._write_properties()
        if not (self.data_dir / "meta.properties").exists():
            if tuple(self._jvm) == QUICK_JVM and self._classes is None:
                words = self._formatting(properties)
                return tool_command("Node", properties, *words, classes=compile_java(NODE))
            self.format()
        return tool_command("kafka.Kafka", properties, jvm=self._jvm, classes=self._classes)

    def _formatting(self, properties: Path, *arguments: str) -> list[str]:
        quorum = [] if self._is_static or "--no-initial-controllers" in arguments else ["--standalone"]
        return ["format", *quorum, "-t", CLUSTER_ID, "-c", str(properties), *arguments]

    def _write_properties(self) -> Path:
        settings: dict[str, object] = {
            **combined_node(self.bootstrap, self.controller),
            "node.id": 1,
            **self._quorum(),
            "log.dirs": self.data_dir,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 5,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 5,
            "group.initial.rebalance.delay.ms": 0,
            **self._settings,
        }
        path = self._work_dir / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _quorum(self) -> dict[str, object]:
        if self._is_static:
            return {"controller.quorum.voters": f"{self._settings.get('node.id', 1)}@{self.controller}"}
        return {"controller.quorum.bootstrap.servers": self.controller}

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"Kafka ended at its start:\n{self._tail_of_the_log()}")
            if _answers_api_versions(self.bootstrap):
                return
            time.sleep(0.02)  # another program's start gives no event
        self.kill()
        raise RuntimeError(f"Kafka did not answer within {START_LIMIT_S:.0f} s:\n{self._tail_of_the_log()}")

    def _tail_of_the_log(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])


def _answers_api_versions(bootstrap: str) -> bool:
    try:
        with RawClient(bootstrap, timeout_s=2) as client:
            client.ask(ApiVersionsRequest(), 0)
    except (OSError, EOFError):
        return False
    return True


def fetch_jars() -> None:
    """Copies Kafka's jars into `kafka_home()/libs` with Maven, or exits with a message."""
    libs = kafka_home() / "libs"
    if all((libs / jar).is_file() for jar in (CONNECT_JAR, STREAMS_JAR, BROKER_JAR)):
        return
    if java_command() is None or shutil.which("mvn") is None:
        raise SystemExit("Kafka's jars need a JDK 17 and Maven (mvn): install both, then run make kafka-jars.")
    libs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=kafka_home()) as work:
        # A copy of the pom, so that Maven creates no files among our sources.
        pom = shutil.copy(HERE / "apache-kafka-pom.xml", Path(work) / "pom.xml")
        command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(pom), COPY, "-DincludeScope=runtime"]
        outcome = subprocess.run(
            [*command, f"-DoutputDirectory={Path(work) / 'libs'}"], stdin=subprocess.DEVNULL, check=False
        )
        if outcome.returncode != 0:
            raise SystemExit(f"Maven did not copy Kafka's jars to {libs}: its own lines above say why.")
        (kafka_home() / ARCHIVE).unlink(missing_ok=True)  # it belongs to the previous jars
        # The broker's own jar is copied last: it marks a complete set.
        for jar in sorted((Path(work) / "libs").iterdir(), key=lambda path: path.name == BROKER_JAR):
            jar.replace(libs / jar.name)


def make_archive() -> None:
    """Runs a node that writes the archive of its classes (rule 4)."""
    archive = kafka_home() / ARCHIVE
    if archive.is_file():
        return
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=kafka_home()) as work:
        made = Path(work) / ARCHIVE
        with ApacheKafka(jvm=(*QUICK_JVM, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable")):
            pass
        if made.is_file():
            made.replace(archive)


if __name__ == "__main__":
    fetch_jars()
    make_archive()
    if "--quiet" not in sys.argv:
        sys.stdout.write(f"{kafka_home() / 'libs'}\n")
