"""Where Spark's connector comes from: the cache, Maven, or Spark's own way, in this order; Maven is a stand-in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.spark import jars
from barnabas.pipeline.spark.jars import FORMATS, JARS, SETTINGS, find_connector, jar_folder

COPIES = """#!/bin/sh
for word in "$@"; do
  case $word in
    -DoutputDirectory=*) target=${word#-DoutputDirectory=};;
  esac
done
mkdir -p "$target"
for jar in %s; do echo "$jar" > "$target/$jar"; done
"""
FAILS = "#!/bin/sh\necho '\x1b[0m[\x1b[1;31mERROR\x1b[m] Could not resolve anything'\nexit 1\n"
NAMES = [f"{artifact}-{version}.jar" for _, artifact, version in JARS]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with only the shell's tools, and an empty cache."""
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "mkdir"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BARNABAS_SPARK_JARS", str(tmp_path / "cache" / "jars"))
    return tmp_path


def install_maven(machine: Path, script: str) -> None:
    mvn = machine / "bin" / "mvn"
    mvn.write_text(script)
    mvn.chmod(0o755)


def test_a_complete_cache_is_used_without_maven(machine: Path) -> None:
    install_maven(machine, FAILS)
    jar_folder().mkdir(parents=True)
    for name in NAMES:
        (jar_folder() / name).touch()
    connector = find_connector()
    assert connector.settings == {"spark.jars": ",".join(str(jar_folder() / name) for name in NAMES)}
    assert connector.source == f"four jars in {jar_folder()}"


def test_maven_fills_the_cache(machine: Path) -> None:
    install_maven(machine, COPIES % " ".join(NAMES))
    connector = find_connector()
    assert connector.source == f"four jars fetched by Maven into {jar_folder()}"
    assert sorted(path.name for path in jar_folder().iterdir()) == sorted(NAMES)
    assert sorted(path.name for path in jar_folder().parent.iterdir()) == ["jars"], "nothing is left beside it"
    assert find_connector().source == f"four jars in {jar_folder()}"


def test_without_maven_spark_downloads_the_jars(machine: Path) -> None:
    connector = find_connector()
    assert connector.settings == {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"}
    assert connector.source == "spark.jars.packages, since there is no mvn on the path"


def test_mavens_error_is_quoted_and_no_partial_cache_remains(machine: Path) -> None:
    install_maven(machine, FAILS)
    connector = find_connector()
    assert "spark.jars.packages" in connector.settings
    assert connector.source.endswith("since Maven failed: Could not resolve anything")
    assert not jar_folder().exists()
    assert list(jar_folder().parent.iterdir()) == []


def test_maven_has_a_timeout(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(machine, "#!/bin/sh\nwhile :; do :; done\n")
    monkeypatch.setattr(jars, "MAVEN_TIMEOUT_S", 0.1)
    assert find_connector().source.endswith("since Maven failed: it was not done after 0.1 s")


def test_a_cache_that_cannot_be_written_is_one_sentence(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_maven(machine, FAILS)
    (machine / "file").touch()
    monkeypatch.setenv("BARNABAS_SPARK_JARS", str(machine / "file" / "jars"))
    with pytest.raises(JobError, match=r"cannot be kept in .*/file/jars: .*; BARNABAS_SPARK_JARS names another folder"):
        find_connector()


@pytest.mark.parametrize(("name", "jar"), [("delta", "delta-storage-4.0.0.jar"), ("iceberg", "iceberg-spark-runtime")])
def test_a_format_adds_its_jars_and_settings(machine: Path, name: str, jar: str) -> None:
    jar_folder().mkdir(parents=True)
    for path in NAMES:
        (jar_folder() / path).touch()
    settings = find_connector([name]).settings
    assert jar.removesuffix(".jar").removesuffix("-4.0.0") in settings["spark.jars.packages"]
    install_maven(machine, COPIES % " ".join(f"{artifact}-{version}.jar" for _, artifact, version in FORMATS[name]))
    found = find_connector([name])
    assert jar in found.settings["spark.jars"]
    assert SETTINGS.get(name, {}).items() <= found.settings.items()


def test_one_missing_jar_is_an_incomplete_cache(machine: Path) -> None:
    install_maven(machine, COPIES % " ".join(NAMES))
    jar_folder().mkdir(parents=True)
    (jar_folder() / NAMES[0]).touch()
    assert "fetched by Maven" in find_connector().source
