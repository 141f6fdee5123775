"""Key and trust stores of changed configs are read in a thread (broker/handlers/admin/broker_config_validation.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.admin.topics import TopicHandlers
from broker.handlers.router import RequestContext
from broker.network.exchange import ConnectionInfo
from broker.security.authorizer import AllowAll
from broker.security.node_tls import NodeTls
from protocol.errors import ErrorCode
from protocol.messages import admin
from replication.completion import Completion, completed
from replication.io_executor import IoResult, Run
from replication.metadata.image import MetadataImage
from replication.timer_queue import TimerQueue
from tests.support.certificates import Certificates
from tests.support.messages import message

CONNECTION = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")
KEYSTORE = "listener.name.tls.ssl.keystore.location"
BROKER, TOPIC = 4, 2


class Stage:
    """The handler of a node with a TLS listener, and a thread whose work `work` does."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder)
        settings = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0,TLS://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
            "listener.name.tls.ssl.keystore.type": "PEM",
            KEYSTORE: str(self.certificates.create("old", "/CN=node")),
        }
        config = BrokerConfig(settings)
        tls = NodeTls(config)
        assert tls.of("TLS") is not None
        self.image = MetadataImage("c")
        self.jobs: list[tuple[Run, IoResult]] = []
        validator = BrokerConfigValidator(config, tls, self.run_in_thread)
        self.handlers = TopicHandlers(self, AllowAll(), TimerQueue(), config, validator)
        self.submitted: list[Any] = []

    def run_in_thread(self, run: Run) -> IoResult:
        result: IoResult = Completion()
        self.jobs.append((run, result))
        return result

    def work(self) -> None:
        for run, result in self.jobs:
            run()
            result.complete(None)

    def submit(self, request: Any, _client: object = None) -> Completion[Any]:
        """Of the controller."""
        self.submitted = [(one.resource_type, one.resource_name) for one in request.resources]
        results = [
            message(
                admin.AlterConfigsResourceResponse, error_code=0, error_message=None, resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one in request.resources
        ]  # fmt: skip
        return completed(admin.IncrementalAlterConfigsResponse(responses=results))

    def alter(self, keystore: Path | None) -> Completion[Any]:
        """Sets the keystore if there is one, and a config of a topic."""
        change = {"name": KEYSTORE, "config_operation": 0, "value": str(keystore)}
        resources = [{"resource_type": BROKER, "resource_name": "1", "configs": [change]}] if keystore else []
        resources.append({"resource_type": TOPIC, "resource_name": "t", "configs": []})
        request = message(admin.IncrementalAlterConfigsRequest, resources=resources)
        return self.handlers.incremental_alter_configs(RequestContext(44, 1, 1, "c", CONNECTION, 500, 0), request)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ca")


def test_a_request_waits_until_the_thread_has_read_the_stores(folder: Path) -> None:
    stage = Stage(folder)
    response = stage.alter(folder / "new.pem")
    assert not response.is_done
    assert not stage.submitted
    stage.certificates.create("new", "/CN=node")  # the file is read later
    stage.work()
    assert [result.error_code for result in response.result().responses] == [0, 0]
    assert stage.submitted == [(BROKER, "1"), (TOPIC, "t")]


def test_a_resource_with_unusable_stores_is_not_submitted(folder: Path) -> None:
    stage = Stage(folder)
    response = stage.alter(folder / "missing.pem")
    stage.work()
    codes = {result.resource_type: result.error_code for result in response.result().responses}
    assert codes == {BROKER: ErrorCode.INVALID_REQUEST, TOPIC: ErrorCode.NONE}
    assert stage.submitted == [(TOPIC, "t")]


def test_a_request_without_stores_needs_no_thread(folder: Path) -> None:
    stage = Stage(folder)
    assert stage.alter(None).is_done
    assert not stage.jobs
