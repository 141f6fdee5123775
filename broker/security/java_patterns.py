"""Regular expressions and replacements of settings that have Java's syntax.

RULES    1. Patterns are as in Java as far as Python's `re` has the construct; others are a ValueError.
         2. A replacement that refers to a group which its pattern does not have is a ValueError; Java fails when it uses it.
"""

from __future__ import annotations

import re
from typing import Final

_GROUP_NAME: Final = re.compile(r"\(\?<(?![=!])")
_REFERENCE: Final = re.compile(r"\\(?P<literal>.)|\$(?:(?P<number>\d+)|\{(?P<name>\w+)\})|(?P<invalid>\$)")


def java_pattern(text: str, replacement: str) -> re.Pattern[str]:
    """The pattern, for which the replacement is checked too.

    Raises:
        ValueError: one of them is invalid; the message says why.
    """
    try:
        pattern = re.compile(_GROUP_NAME.sub("(?P<", text))
    except re.error as error:
        raise ValueError(str(error)) from None
    if not all(_is_valid(reference, pattern) for reference in _REFERENCE.finditer(replacement)):
        raise ValueError(f"{replacement} refers to a group that its pattern does not have")
    return pattern


def _is_valid(reference: re.Match[str], pattern: re.Pattern[str]) -> bool:
    """Whether Java finds the group of a reference; of a pattern with groups, a number that is too large stays as text."""
    if reference["number"] is not None:
        return pattern.groups > 0 or reference["number"].startswith("0")
    return reference["literal"] is not None or reference["name"] in pattern.groupindex


def expanded(replacement: str, match: re.Match[str]) -> str:
    """As Java's Matcher.appendReplacement: `$1` or `${name}` inserts a group, a backslash escapes."""

    def part(found: re.Match[str]) -> str:
        if found["number"] is None:
            return found["literal"] or match[found["name"]] or ""
        digits = found["number"]
        while len(digits) > 1 and int(digits) > match.re.groups:
            digits = digits[:-1]
        if int(digits) > match.re.groups:
            return found[0]
        return (match[int(digits)] or "") + found["number"][len(digits) :]

    return _REFERENCE.sub(part, replacement)
