"""Tokens of SASL/OAUTHBEARER, from the places that Kafka's own client knows.

RULES    1. `sasl.oauthbearer.token.endpoint.url` with file:// names a file with the token; with https:// or http:// a server
            that grants tokens for `clientId`, `clientSecret` and `scope` of the JAAS text (RFC 6749, section 4.4).
         2. Without a URL, `unsecuredLoginStringClaim_sub` of the JAAS text makes an unsigned token, for development (KIP-255).
         3. A token is asked for at each connection, so an expired one is replaced by a new connection.
NOT HERE The login itself (`secure_stream.py`).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from barnabas.client.errors import ClientError

OAUTHBEARER = "OAUTHBEARER"
TOKEN_TIMEOUT_S = 10.0
UNSECURED_LIFETIME_S = 3600


class TokenSource(NamedTuple):
    """Where tokens are from."""

    url: str
    """Empty for unsigned tokens."""
    options: Mapping[str, str]
    """The options of the JAAS text."""


def oauth_token(source: TokenSource) -> str:
    """Returns a token. Raises ClientError."""
    try:
        if source.url.startswith("file:"):
            return Path(unquote(urlsplit(source.url).path)).read_text().strip()
        if source.url:
            return _granted(source)
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise ClientError(f"{source.url} gives no token: {str(failure).strip()}.") from failure
    subject = source.options.get("unsecuredLoginStringClaim_sub")
    if subject is None:
        raise ClientError("OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url: file:///… or https://….")
    now = time.time()
    claims = {"sub": subject, "iat": now, "exp": now + UNSECURED_LIFETIME_S}
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _granted(source: TokenSource) -> str:
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    if not source.url.startswith(("https://", "http://")):
        raise ValueError("the URL must begin with https://, http:// or file://")
    options = source.options
    login = f"{quote(options['clientId'], safe='')}:{quote(options['clientSecret'], safe='')}"
    fields = {"grant_type": "client_credentials"}
    if "scope" in options:
        fields["scope"] = options["scope"]
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}", "Accept": "application/json"}
    request = Request(source.url, urlencode(fields).encode(), headers)  # noqa: S310 the scheme was checked
    try:
        with urlopen(request, timeout=TOKEN_TIMEOUT_S) as response:  # noqa: S310
            return str(json.load(response)["access_token"])
    except HTTPException as failure:
        raise ValueError(f"the server does not speak HTTP, or broke off: {str(failure).strip()}") from failure


def _part(fields: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()
