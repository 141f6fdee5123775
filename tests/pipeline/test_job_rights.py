"""Jobs on a SASL_SSL listener with ACLs: each runs with the rights of docs/pipeline.md, and fails with one less."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.pipeline import ArchiveSettings, ReplaySettings, archive, replay
from barnabas.pipeline.errors import JobError, describe_failure
from tests.pipeline.job_rights import INTO, JOBS, OUT_OF, Right, World, documented, fill
from tests.support.security_profiles import PROFILES, SecuredNode

USER = "bob"
WITH_DESCRIBE = {"Read", "Write", "Delete"}
LIMIT_S = 20
RIGHTS = documented()
ONE_LESS = [(job, missing) for job, rights in RIGHTS.items() for missing in rights]


@pytest.fixture(scope="module")
def world(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("rights")
    with SecuredNode(PROFILES["SASL_SSL/SCRAM-SHA-512"], {"num.partitions": 1}) as node:
        fill(node)
        lines = node.login(USER).java().items()
        (folder / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in lines))
        settings = {"bootstrap": node.bootstrap, "command_config": folder / "client.properties"}
        archive(spark, ArchiveSettings(bootstrap=node.inside, into=folder / "archive", topic=(OUT_OF,)))
        yield World(node, spark, settings, folder / "archive")


def grant(world: World, rights: list[Right]) -> None:
    """Replaces the user's rights."""
    world.node.clear(USER)
    for right in rights:
        right.grant(world.node, USER)


def test_the_page_lists_every_job() -> None:
    assert RIGHTS.keys() == JOBS.keys()


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_with_its_rights(world: World, job: str, tmp_path: Path) -> None:
    grant(world, RIGHTS[job])
    JOBS[job](world, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("job", "missing"), ONE_LESS, ids=str)
def test_a_job_names_the_right_that_is_missing(world: World, job: str, missing: Right, tmp_path: Path) -> None:
    """Describe stays where it is part of the right: so the job's last request fails, not only its first one."""
    less = [missing._replace(operation="Describe")] if missing.operation in WITH_DESCRIBE else []
    grant(world, [right for right in RIGHTS[job] if right != missing] + less)
    with pytest.raises(Exception) as failure:
        JOBS[job](world, tmp_path)
    sentence = str(failure.value) if isinstance(failure.value, JobError) else describe_failure(failure.value)
    if job == "demo" or job.startswith("Spark's"):  # these show the errors of their clients
        assert re.search("Not authorized to access topics|[Aa]uthorization ?[Ff]ailed|denies", str(failure.value))
    else:
        assert str(missing) in sentence


@pytest.mark.long
@pytest.mark.parametrize("rate", [None, 20.0])
def test_a_refused_topic_is_named_when_the_refusal_arrives_between_records(
    world: World, rate: float | None, tmp_path: Path
) -> None:
    """The client refuses further records of a failed transaction, without the reason."""
    right = Right("Write", "topic", INTO, "literal")
    grant(world, [right._replace(operation="Describe"), *(has for has in RIGHTS["replay --archive"] if has != right)])
    settings = ReplaySettings(**world.settings, archive=world.archive, topic=OUT_OF, to=INTO, name="slow", rate=rate)
    with pytest.raises(Exception) as failure:
        replay(world.spark, settings)
    assert str(right) in describe_failure(failure.value)


@pytest.mark.long
@pytest.mark.parametrize("job", JOBS)
def test_a_job_without_rights_fails_at_once(world: World, job: str, tmp_path: Path) -> None:
    grant(world, [])
    started = time.monotonic()
    with pytest.raises(Exception) as failure:
        JOBS[job](world, tmp_path)
    assert time.monotonic() - started < LIMIT_S
    assert re.search(
        "denies (the job )?(Describe|Create) on topic|(Topic|Cluster)AuthorizationException", str(failure.value)
    )
