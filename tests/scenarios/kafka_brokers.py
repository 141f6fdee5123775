"""Apache Kafka as a target of scenarios: one broker per set of settings, started at first use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from types import MappingProxyType
from typing import Any

from protocol.schema import Message
from tests.scenarios.run import Runner, settings_of
from tests.support.group_harness import SocketGroupHarness
from tests.support.kafka import ApacheKafka

PATIENCE_MS = 5000


class PatientGroupHarness(SocketGroupHarness):
    """Waits longer for the expected responses: a JVM broker is slow at first requests."""

    def __init__(self, bootstrap: str, topic_ids: Mapping[str, bytes] = MappingProxyType({})) -> None:
        super().__init__(bootstrap)
        self.topic_ids.update(topic_ids)
        self._expected: frozenset[str] = frozenset()

    def take(self, actor: str, patience_ms: int) -> Message | None:
        """The next response to an actor."""
        return super().take(actor, PATIENCE_MS if actor in self._expected else patience_ms)

    def play(self, text: str) -> str:
        """The transcript of a scenario."""
        runner = Runner(self)
        runner.named = set(re.findall(r"'([^']*)'", text))
        out = []
        for part in re.split(r"^(?![<.])", text, flags=re.MULTILINE)[1:]:
            line, *answers = part.split("\n")
            self._expected = frozenset(answer.split()[1] for answer in answers if answer.startswith("<"))
            out += runner.step(line)
        return "\n".join(out)


class Brokers(ExitStack):
    """Brokers that live as long as the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self._brokers: dict[tuple[tuple[str, Any], ...], ApacheKafka] = {}

    def run(self, text: str) -> str:
        """The transcript of a scenario on a broker with its settings."""
        with closing(PatientGroupHarness(self.bootstrap(text))) as harness:
            return harness.play(text)

    def bootstrap(self, text: str) -> str:
        """The address of a broker with the scenario's settings."""
        settings = settings_of(text)
        key = tuple(sorted(settings.items()))
        if key not in self._brokers:
            kafka = ApacheKafka({**settings, "auto.create.topics.enable": "false"})
            self._brokers[key] = self.enter_context(kafka)
            with closing(SocketGroupHarness(kafka.bootstrap)) as harness:
                harness.find_coordinator()
        return self._brokers[key].bootstrap
