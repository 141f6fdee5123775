"""The principal of a client certificate (Kafka: DefaultKafkaPrincipalBuilder, SslPrincipalMapper).

FORMAT   Name ::= SEQUENCE OF SET OF SEQUENCE { type OBJECT IDENTIFIER, value ANY } (X.501), the subject of a certificate.
         ssl.principal.mapping.rules: DEFAULT or RULE:pattern/replacement/[LU], separated by commas.
RULES    1. The name is the subject as Java prints it (X500Principal.getName, RFC 2253): last RDN first, attribute types
            without a keyword there as OID and hexadecimal DER.
         2. The first rule whose pattern matches the whole name decides; without one the connection fails.
         3. Rules have Java's syntax of patterns as far as Python's `re` has it; others are refused at startup, and so are
            replacements with which Java closes each connection.
NOT HERE Whether the certificate is trusted (OpenSSL, set up in `tls_context.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from broker.security.certificates import certificate_fields
from broker.security.der import Element, elements, object_identifier
from broker.security.java_patterns import expanded, java_pattern

_STRING_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_KEYWORDS: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
"""The attribute types that RFC 2253 names."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_RULE_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_RULE_PARSER: Final = re.compile(_RULE)


class NoPrincipal(Exception):
    """A certificate has no readable subject, or no rule applies to it."""


class _Rule(NamedTuple):
    """One rule; no pattern: DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str


class PrincipalMapper:
    """The rules of `ssl.principal.mapping.rules`."""

    def __init__(self, text: str) -> None:
        """Parses the rules.

        Raises:
            ValueError: a rule is invalid; the message says which.
        """
        self._rules = [rule for part in _RULE_SPLITTER.finditer(text.strip()) for rule in _parsed(part[1])]

    def name(self, distinguished_name: str) -> str:
        """The name of a principal.

        Raises:
            NoPrincipal: no rule applies.
        """
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return distinguished_name
            if pattern.fullmatch(distinguished_name):
                name = pattern.sub(partial(expanded, replacement), distinguished_name)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise NoPrincipal(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _parsed(rule: str) -> Iterator[_Rule]:
    match = _RULE_PARSER.match(rule)
    if match is None or match.end() != len(rule):
        raise ValueError(f"Invalid rule: {rule}")
    if match[1] is not None:
        yield _Rule(None, "", "")
    elif match[2] is not None:
        try:
            yield _Rule(java_pattern(match[2], match[4]), match[4], match[6])
        except ValueError as error:
            raise ValueError(f"Invalid rule: {rule}: {error}") from None


def distinguished_name(certificate: bytes, separator: str = ",") -> str:
    """The subject of a certificate in DER.

    Raises:
        NoPrincipal: it cannot be read.
    """
    try:
        (subject,) = elements(certificate_fields(certificate).subject)
        names = [_relative_name(element) for element in elements(subject.content)]
    except (IndexError, ValueError) as error:
        raise NoPrincipal(f"a certificate cannot be read: {error}") from None
    return separator.join(reversed(names))


def _relative_name(element: Element) -> str:
    return "+".join(map(_attribute, elements(element.content)))


def _attribute(attribute: Element) -> str:
    kind, value = elements(attribute.content)
    oid = object_identifier(kind.content)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _STRING_TAGS:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    """Java's AVA.toRFC2253String: special characters, NUL, and spaces at both ends."""
    escaped = "".join(f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char for char in text)
    begin = len(escaped) - len(escaped.lstrip(" \r"))
    end = len(escaped.rstrip(" \r"))
    if end <= begin:
        return "".join(f"\\{char}" for char in escaped)
    leading, trailing = escaped[:begin], escaped[end:]
    return "".join(f"\\{c}" for c in leading) + escaped[begin:end] + "".join(f"\\{c}" for c in trailing)
