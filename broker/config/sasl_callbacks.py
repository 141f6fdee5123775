"""Entry points of installed packages that authenticate clients instead of this broker.

FORMAT   an entry point of the group `barnabas.sasl_callbacks`; `sasl.server.callback.handler.class` of the mechanism names it
         PLAIN         (user, password) -> whether they are right
         OAUTHBEARER   (token) -> (user, expiry in seconds since 1970); ValueError: the token is refused
NOT HERE Calls (`broker/security/sasl/callbacks.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.config.broker_config import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "barnabas.sasl_callbacks"
HANDLER: Final = "sasl.server.callback.handler.class"
"""The setting of a mechanism that names how it authenticates."""


def is_callback(name: str) -> bool:
    """Whether an installed package has this entry point."""
    return bool(name) and _find(name) is not None


def load_callback(name: str) -> Callable[..., Any]:
    """The function of an entry point.

    Raises:
        ConfigError: it does not exist or cannot be imported.
    """
    found = _find(name)
    if found is None:
        raise ConfigError(f"{HANDLER}: no installed package has an entry point {name} of the group {GROUP}")
    try:
        loaded: Callable[..., Any] = found.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{HANDLER}: the entry point {name} cannot be loaded: {error}") from error
    return loaded


def _find(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points  # noqa: PLC0415  # its imports are a twelfth of the time of a start

    return next(iter(entry_points(group=GROUP, name=name)), None)
