"""Kafka's tools with --command-config on a listener with TLS, authentication and ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import needs_kafka
from tests.support.kafka_tools import KafkaTools, Outcome, run_in_own_jvm
from tests.support.security_profiles import PROFILES, Login, SecuredNode
from tests.support.tool_comparison import CLASSES

pytestmark = needs_kafka
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
ALICE = "create alter describe describe_configs alter_configs"


class Runner:
    """Tools as a user of the node."""

    def __init__(self, node: SecuredNode, tools: KafkaTools, folder: Path) -> None:
        self.node = node
        self._tools = tools
        self._folder = folder

    def options(self, login: Login) -> list[str]:
        config = self._folder / "client.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in login.java().items()))
        return ["--bootstrap-server", self.node.bootstrap, "--command-config", str(config)]

    def run(self, line: str, login: Login | None = None) -> Outcome:
        tool, *words = line.split()
        return self._tools.run(CLASSES[tool], *self.options(login or self.node.login("alice")), *words)


@pytest.fixture(scope="module", params=["SSL", "SASL_SSL/SCRAM-SHA-512", "SASL_PLAINTEXT/PLAIN"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("tools")
    with SecuredNode(PROFILES[request.param], {"offsets.topic.num.partitions": 1}) as node, KafkaTools() as tools:
        for resource in ("topic", "group"):
            node.allow("alice", "all", resource, "*")
        node.allow("alice", ALICE, "cluster")
        yield Runner(node, tools, folder)


def test_topics_and_configs_change_through_kafkas_tools(runner: Runner) -> None:
    assert runner.run("kafka-topics --create --topic t --partitions 2").stdout.strip() == "Created topic t."
    assert "PartitionCount: 2" in runner.run("kafka-topics --describe --topic t").stdout
    change = "kafka-configs --entity-type topics --entity-name t --alter --add-config retention.ms=7200000"
    assert "Completed updating config for topic t." in runner.run(change).stdout
    assert "retention.ms=7200000" in runner.run("kafka-configs --entity-type topics --entity-name t --describe").stdout


def test_acls_count_at_once(runner: Runner) -> None:
    bob = runner.node.login("bob")
    principal = runner.node.profile.principal("bob")
    assert "Created topic seen." in runner.run("kafka-topics --create --topic seen").stdout
    assert "seen" not in runner.run("kafka-topics --list", bob).stdout
    added = runner.run(f"kafka-acls --add --allow-principal {principal} --operation Describe --topic seen")
    assert "operation=DESCRIBE, permissionType=ALLOW" in added.stdout
    assert runner.run("kafka-topics --list", bob).stdout.split() == ["seen"]
    denied = runner.run("kafka-topics --delete --topic seen", bob)
    assert "Topic authorization failed." in denied.out + denied.err
    denied = runner.run("kafka-acls --list", bob)
    assert "ClusterAuthorizationException" in denied.out + denied.err


def test_console_clients_and_their_group(runner: Runner) -> None:
    runner.run("kafka-topics --create --topic lines")
    login = runner.node.login("alice")
    sent = run_in_own_jvm(PRODUCER, *runner.options(login), "--topic", "lines", stdin="a\nb\n")
    assert sent.code == 0, sent
    read = runner.run("kafka-console-consumer --topic lines --group g --from-beginning --max-messages 2")
    assert read.stdout.split() == ["a", "b"]
    described = runner.run("kafka-consumer-groups --describe --group g").stdout.split("\n")
    (row,) = [line.split() for line in described if " lines " in line]
    assert row[:6] == ["g", "lines", "0", "2", "2", "0"]
    denied = runner.run("kafka-consumer-groups --describe --group g", runner.node.login("bob"))
    assert "GroupAuthorizationException" in denied.out + denied.err


def test_a_login_that_fails_is_named(runner: Runner) -> None:
    if runner.node.profile.mechanism:
        wrong = runner.run("kafka-topics --list", runner.node.login("alice", "wrong"))
        assert wrong.code == 1
        assert "Authentication failed" in wrong.out + wrong.err
    if runner.node.profile.has_tls:
        wrong = runner.run("kafka-topics --list", runner.node.login("alice", trusts_node=False))
        assert wrong.code == 1
        assert "SSL handshake failed" in wrong.out + wrong.err
