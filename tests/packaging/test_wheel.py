"""The wheel in a clean environment, next to a user's own modules `storage` and `broker`.

RULES    1. Only `barnabas` is installed into site-packages.
         2. The daemon runs its own modules whatever the working directory contains, and user code its own.
         3. The command, the context manager and the fixtures work as installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

USER_TEST = """
import storage
import broker
from kafka import KafkaConsumer, KafkaProducer

def test_round_trip(kafka_broker, kafka_topic):
    assert storage.MINE == broker.MINE == "the user's own"
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
    producer.send(kafka_topic, key=b"k", value=b"v").get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(
        kafka_topic, bootstrap_servers=kafka_broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    record = next(consumer)
    assert (record.key, record.value) == (b"k", b"v")
    consumer.close()

def test_a_broker_of_its_own(tmp_path):
    import barnabas
    with barnabas.Broker(tmp_path / "data", settings={"num.partitions": 3}) as own:
        assert own.is_running
    assert not own.is_running
"""


def run(*command: object, cwd: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("barnabas-*.whl")
    return path


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with the wheel, its dependencies, a client and pytest."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    wanted = (wheel, "pytest", "kafka-python")
    installed = run(*pip, "--constraint", ROOT / "constraints.txt", *wanted, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return python


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A working directory with a user's `storage` and `broker`, which fail if the daemon imports them."""
    for name in ("storage", "broker", "protocol", "replication"):
        (tmp_path / f"{name}.py").write_text('MINE = "the user\'s own"\n')
    return tmp_path


def test_the_wheel_installs_one_package(wheel: Path) -> None:
    """Rule 1: all packages are in it, with their `__init__.py`."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"barnabas"}
    carried = {name.removeprefix("barnabas/_daemon/") for name in names if name.startswith("barnabas/_daemon/")}
    here = {
        str(path.relative_to(ROOT))
        for floor in ("broker", "protocol", "replication", "storage")
        for path in (ROOT / floor).rglob("*.py")
    }
    assert carried >= here
    assert "barnabas/pipeline/log4j2.properties" in names


def test_the_command_works_next_to_foreign_modules(clean: Path, workplace: Path) -> None:
    """Rule 2, for `barnabas serve` and `python -m barnabas serve`."""
    for command in ([clean.with_name("barnabas")], [clean, "-m", "barnabas"]):
        daemon = subprocess.Popen(
            [*command, "serve", "--listen", "127.0.0.1:0", "--data-dir", "data"],
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with daemon:
            assert daemon.stdout is not None
            assert daemon.stderr is not None
            ready = daemon.stdout.readline()
            daemon.terminate()
            assert ready.startswith("barnabas ready on 127.0.0.1:"), daemon.stderr.read()
            assert daemon.wait(20) == 0


def test_the_fixtures_work_next_to_foreign_modules(clean: Path, workplace: Path) -> None:
    """Rules 2 and 3: a user's test suite, run by the environment's pytest."""
    (workplace / "test_theirs.py").write_text(USER_TEST)
    outcome = run(clean, "-m", "pytest", "-q", "test_theirs.py", cwd=workplace)
    assert "2 passed" in outcome.stdout, outcome.stdout + outcome.stderr


def test_the_version_is_printed(clean: Path, workplace: Path) -> None:
    assert run(clean.with_name("barnabas"), "--version", cwd=workplace).stdout == "barnabas 0.1.0 (pure Python)\n"


def test_the_tools_read_the_brokers_directory(clean: Path, workplace: Path) -> None:
    """`barnabas doctor` and `barnabas dump-log` are in the wheel."""
    outcome = run(clean, "-P", "-c", "import barnabas; barnabas.Broker('data').start().stop()", cwd=workplace)
    assert outcome.returncode == 0, outcome.stderr
    visit = run(clean.with_name("barnabas"), "doctor", "data", cwd=workplace)
    assert (visit.returncode, visit.stderr) == (0, ""), visit
    assert "Nothing is wrong." in visit.stdout
    log = f"data/__cluster_metadata-0/{0:020d}.log"
    shown = run(clean.with_name("barnabas"), "dump-log", "--json", "--cluster-metadata-decoder", log, cwd=workplace)
    assert (shown.returncode, shown.stderr) == (0, ""), shown
    assert [json.loads(line) for line in shown.stdout.splitlines()]


def test_only_the_pipeline_needs_an_extra_and_names_it(clean: Path, workplace: Path) -> None:
    outcome = run(clean.with_name("barnabas"), "pipeline", "archive", cwd=workplace)
    assert outcome.returncode == 1
    (sentence,) = outcome.stderr.splitlines()
    assert "pyspark" in sentence
    assert "pip install 'barnabas[spark]'" in sentence
    certificates = run(clean.with_name("barnabas"), "certs", "--node", "a=localhost", cwd=workplace)
    assert certificates.returncode == 0, certificates.stderr
    assert run(clean, "-P", "-c", "import barnabas.bench.loads", cwd=workplace).returncode == 0


def test_the_other_verbs_need_no_extra(clean: Path, workplace: Path) -> None:
    verbs = re.findall(r"^  ([\w-]+)  ", run(clean.with_name("barnabas"), cwd=workplace).stdout, re.MULTILINE)
    assert {"serve", "cluster", "health", "doctor"} <= set(verbs)
    for verb in set(verbs) - {"pipeline"}:
        outcome = run(clean.with_name("barnabas"), verb, "--help", cwd=workplace)
        assert (outcome.returncode, outcome.stderr) == (0, ""), verb
        assert "usage" in outcome.stdout.lower()
