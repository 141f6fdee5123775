"""The keys that verify JWTs: a JWKS file or URL, read and refreshed in a thread (KIP-768; Kafka: RefreshingHttpsJwks).

RULES    1. The event loop reads `keys`, which the thread replaces; it never waits for a file or a server.
         2. After a failure the old keys stay, and the next attempt waits for a backoff. Without keys every token is refused.
         3. A token with an unknown key id causes a refresh, at most every 10 s.
         4. A response is limited in size and time, and a redirection is refused: the URL is allowed, no other.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from broker.config.oauth_configs import JwksValidation

_log = logging.getLogger("barnabas.security")

_TIMEOUT_S: Final = 10
_FIRST_FETCH_S: Final = 10
_MAX_BYTES: Final = 1024 * 1024
_MIN_EXPEDITED_S: Final = 10


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Refuses redirections."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None."""


class JwksFetcher:
    """Keeps the keys of one listener; `parse` makes them of the JSON text's object."""

    def __init__(self, settings: JwksValidation, parse: Callable[[dict[str, Any]], list[Any]]) -> None:
        self._settings = settings
        self._parse = parse
        self._opener = urllib.request.build_opener(_NoRedirection)
        self._wake = threading.Event()
        self._fetched = threading.Event()
        self._expedited_mono_s = -float(_MIN_EXPEDITED_S)
        self._is_closed = False
        self.keys: list[Any] = []
        """The newest keys."""

    def start(self) -> None:
        """Starts the thread, and waits for its first attempt."""
        threading.Thread(target=self._run, name="jwks", daemon=True).start()
        self._fetched.wait(_FIRST_FETCH_S)

    def expedite(self) -> None:
        """Refreshes soon: a token names an unknown key."""
        now_s = time.monotonic()
        if now_s - self._expedited_mono_s >= _MIN_EXPEDITED_S:
            self._expedited_mono_s = now_s
            self._wake.set()

    def close(self) -> None:
        """Ends the thread, after a request in progress."""
        self._is_closed = True
        self._wake.set()

    def _run(self) -> None:
        backoff_ms = self._settings.backoff_ms
        while not self._is_closed:
            try:
                self.keys = self._parse(self._fetch())
                wait_ms, backoff_ms = self._settings.refresh_ms, self._settings.backoff_ms
            except Exception as error:  # noqa: BLE001  # whatever a server sends, the thread goes on with the old keys
                _log.warning("cannot read the keys of %s: %s: %s", self._settings.url, type(error).__name__, error)
                wait_ms, backoff_ms = backoff_ms, min(backoff_ms * 2, self._settings.max_backoff_ms)
            self._fetched.set()
            self._wake.wait(wait_ms / 1000)
            self._wake.clear()

    def _fetch(self) -> dict[str, Any]:
        with self._opener.open(self._settings.url, timeout=_TIMEOUT_S) as response:
            text = response.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004  # of the server, not of a caller
        return value
