"""Settings of one listener: `listener.name.<listener>.<setting>`, for some with `<mechanism>.` before the setting."""

from __future__ import annotations

import re
from typing import Final

_OF_LISTENER: Final = re.compile(r"listener\.name\.[^.]*\.(.+)")
_OF_MECHANISMS: Final = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)


def general_name(name: str) -> str | None:
    """The name of the setting that this one overrides for a listener; None if it is not of a listener."""
    match = _OF_LISTENER.fullmatch(name)
    if match is None:
        return None
    own_name = match[1]
    return next((general for general in _OF_MECHANISMS if own_name.endswith(general)), own_name)
