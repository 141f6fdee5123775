"""Authentication of clients on this node's SASL listeners: the users, the counters, a dispatcher for each connection.

NOT HERE The order of messages (`broker/security/sasl/authenticator.py`), frames (`broker/handlers/sasl_dispatcher.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.sasl_configs import sasl_listener
from broker.config.security_configs import uses_sasl
from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.sasl_dispatcher import SaslContext, SaslDispatcher
from broker.network.listener import Authentication
from broker.security.sasl.callbacks import CallbackThreads
from broker.security.sasl.mechanisms import SaslUsers, sasl_servers
from broker.security.sasl.token_credentials import TokenCredentials
from broker.telemetry.authentication_metrics import AuthenticationMetrics
from replication.metadata.image import MetadataImage
from replication.timer_queue import Clock, TimerQueue

_NONCE_BYTES: Final = 24
"""Of a SCRAM server's nonce."""


class SaslAuthentication:
    """Authenticates the clients of all listeners with SASL."""

    def __init__(
        self,
        config: BrokerConfig,
        image: Callable[[], MetadataImage],
        timers: TimerQueue,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`call_soon` calls a function on the event loop, from any thread."""
        self._config, self._timers, self._clock = config, timers, clock
        tokens = TokenCredentials(config.tokens, image, clock.wall_ms)
        self._users = SaslUsers(
            image, partial(secrets.token_urlsafe, _NONCE_BYTES), tokens, clock.wall_ms, CallbackThreads(call_soon)
        )
        self.metrics = AuthenticationMetrics()
        """Of all listeners with SASL."""

    def of_listener(self, name: str, dispatcher: Dispatcher) -> Authentication | None:
        """What authenticates the clients of a listener before `dispatcher` serves them; None: nothing."""
        if not uses_sasl(self._config, name):
            return None
        config = sasl_listener(self._config, name)
        servers = sasl_servers(config, self._users)
        self.metrics.add_listener(name)
        return partial(
            SaslDispatcher, SaslContext(config, dispatcher, servers, self._timers, self._clock, self.metrics)
        )
