"""Apache Kafka as the world of a scenario: one broker for each set of settings, started when first wanted."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from tests.scenarios.run import Runner, settings_of
from tests.support.group_world import SocketWorld
from tests.support.kafka import ApacheKafka


class Brokers:
    """Brokers for as long as the `with` block lasts."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._brokers: dict[tuple[tuple[str, Any], ...], ApacheKafka] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, text: str) -> str:
        """The transcript of a scenario against a broker with its settings."""
        world = SocketWorld(self.bootstrap(text))
        try:
            return Runner(world).run(text)
        finally:
            world.close()

    def bootstrap(self, text: str) -> str:
        """Where a broker with the settings of a scenario is."""
        settings = settings_of(text)
        key = tuple(sorted(settings.items()))
        if key not in self._brokers:
            kafka = ApacheKafka({**settings, "auto.create.topics.enable": "false"})
            self._brokers[key] = self._stack.enter_context(kafka)
            world = SocketWorld(kafka.bootstrap)
            world.find_coordinator()
            world.close()
        return self._brokers[key].bootstrap
