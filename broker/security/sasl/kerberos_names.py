"""The user of a Kerberos principal (Kafka: KerberosName, KerberosShortNamer, KerberosRule).

FORMAT   principal: service[/host]@realm, such as alice@EXAMPLE.COM
         sasl.kerberos.principal.to.local.rules: DEFAULT, or RULE:[n:format](match)s/pattern/replacement/g/L with all parts
         behind the brackets optional, and U instead of L; separated by commas.
RULES    1. The first rule that applies decides; without one the client is refused.
         2. DEFAULT applies to principals of the default realm; the user is the service.
         3. RULE:[n:format] applies to principals with n parts before the realm, which have 1 or 2. $0 in the format is the
            realm, $1 and $2 are the parts. `match` must match the whole; then `s` replaces the first occurrence of its
            pattern, or with `g` all.
         4. A result with `/` or `@` refuses the client.
NOT HERE Tokens (`gssapi_server.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.security.java_patterns import expanded, java_pattern

_PRINCIPAL: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)"
    r"|RULE:\[(?P<parts>\d*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<repeats>g)?)?/?(?P<case>L|U)?"
)
_DEFAULT: Final = -1
_PARAMETER: Final = re.compile(r"\$(\d*)")
_NOT_SIMPLE: Final = re.compile(r"[/@]")


class NoLocalName(ValueError):
    """A principal is malformed, or no rule makes a user of it."""


class _Rule(NamedTuple):
    """One rule; no pattern: nothing is replaced."""

    parts: int
    """Before the realm; -1: this is DEFAULT."""
    format: str = ""
    match: re.Pattern[str] | None = None
    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    repeats: bool = False
    case: str = ""

    def apply(self, parts: Sequence[str]) -> str | None:
        """The user for realm, service and perhaps host; None if the rule does not apply."""
        if len(parts) - 1 != self.parts:
            return None
        text = _PARAMETER.sub(lambda found: parts[int(found[1])], self.format)
        if self.match is not None and not self.match.fullmatch(text):
            return None
        if self.pattern is not None:
            text = self.pattern.sub(partial(expanded, self.replacement), text, count=0 if self.repeats else 1)
        if _NOT_SIMPLE.search(text):
            raise NoLocalName(f"a rule of sasl.kerberos.principal.to.local.rules makes {text}, which is not simple")
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


class KerberosNames:
    """The rules of `sasl.kerberos.principal.to.local.rules`."""

    def __init__(self, rules: Iterable[str]) -> None:
        """Parses the rules.

        Raises:
            ValueError: a rule is invalid; the message says which.
        """
        self._rules = [_parsed(rule) for rule in rules]

    def user(self, principal: str, default_realm: str) -> str:
        """The user of a principal.

        Raises:
            NoLocalName: there is none.
        """
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:
            raise NoLocalName(f"{principal} is not a Kerberos principal")
        service, host, realm = found.groups()
        parts = (realm, service) if host is None else (realm, service, host)
        for rule in self._rules:
            is_ours = rule.parts == _DEFAULT and realm == default_realm
            user = service if is_ours else rule.apply(parts)
            if user is not None:
                return user
        raise NoLocalName(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal}")


def _parsed(text: str) -> _Rule:
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"Invalid rule: {text}")
    if found["default"] is not None:
        return _Rule(_DEFAULT)
    parts = int(found["parts"] or 0)
    numbers = _PARAMETER.findall(found["format"])
    if not all(number and int(number) <= parts for number in numbers):
        raise ValueError(f"Invalid rule: {text}: its format refers to a part that it does not have")
    try:
        pattern = found["pattern"] and java_pattern(found["pattern"], found["replacement"])
        match = None if found["match"] is None else java_pattern(found["match"], "")
    except ValueError as error:
        raise ValueError(f"Invalid rule: {text}: {error}") from None
    more = found["replacement"] or "", found["repeats"] is not None, found["case"] or ""
    return _Rule(parts, found["format"], match, pattern or None, *more)
