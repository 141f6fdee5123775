"""Setting definitions with Kafka's names: types, allowed values, error messages (Kafka: ConfigDef).

RULES    1. A setting is a row of a table: name, kind, default, check. Topic settings are in `log_config.py`,
            broker settings in `broker/config/config_definitions.py`; both are parsed by the functions here.
         2. Values are text, as in properties files and the metadata log; `parse` converts text to a value or raises
            `BadSetting` with the message of Apache Kafka's ConfigDef.
NOT HERE The sources of a value (file, command line, metadata log) and their precedence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

Value = bool | int | float | str | list[str] | None

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


class BadSetting(ValueError):
    """An invalid value; the message is a sentence."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        if isinstance(reason, _ListReason):
            super().__init__(f"Configuration '{name}' {reason}")
        else:
            super().__init__(f"Invalid value {_java_text(value)} for configuration {name}: {reason}")


class _ListReason(str):
    """The error of a list as a whole."""

    __slots__ = ()


class Kind(IntEnum):
    """Types of values, numbered as in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_WITH_REPETITIONS = ".replication.throttled.replicas"
"""The end of the names of lists whose repeated elements Apache Kafka keeps."""
_INTEGER_LIMIT = {Kind.SHORT: 2**15 - 1, Kind.INT: MAX_INT, Kind.LONG: MAX_LONG}

Check = Callable[[Value], str | None]
"""Returns the error of a parsed value, or None."""


class Setting(NamedTuple):
    """A row of a settings table; `default` is text as in a properties file, None means unset."""

    name: str
    kind: Kind
    default: str | None
    check: Check | None
    documentation: str


def at_least(lowest: int) -> Check:
    """Numbers from `lowest` on."""
    return between(lowest, math.inf)


def between(lowest: int, highest: float) -> Check:
    """Numbers from `lowest` to `highest`, inclusive."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < lowest:
            return f"Value must be at least {lowest}"
        return f"Value must be no more than {highest}" if value > highest else None

    return check


def between_or(lowest: int, highest: int, special: int) -> Check:
    """Numbers from `lowest` to `highest`, or one special number."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value == special or lowest <= value <= highest:
            return None
        return f"Value must be between {lowest} and {highest} or equal to {special}"

    return check


def one_of(*allowed: str) -> Check:
    """A string, or a list of strings, from a set."""
    sentence = "String must be one of: " + ", ".join(allowed)

    def check(value: Value) -> str | None:
        for element in value if isinstance(value, list) else [value]:
            if element not in allowed:
                return sentence
        return None

    return check


def list_of(*allowed: str, may_be_empty: bool = True) -> Check:
    """A list without empty elements; with `allowed`, of these elements."""
    check_element = one_of(*allowed)

    def check(value: Value) -> str | None:
        if not isinstance(value, list):
            return check_element(value) if allowed else None
        if not value and not may_be_empty:
            valid = _java_text(list(allowed)) if allowed else "any non-empty value"
            return _ListReason(f"must not be empty. Valid values include: {valid}")
        for element in value:
            if not element:
                return _ListReason("values must not be empty.")
            if allowed and element not in allowed:
                return check_element(element)
        return None

    return check


_ANY_LIST = list_of()


def not_empty_text(value: Value) -> str | None:
    """A text with at least one character."""
    return None if value else "String must be non-empty"


def one_of_any_case(*allowed: str) -> Check:
    """A string from a set, case-insensitive."""
    sentence = "String must be one of (case insensitive): " + ", ".join(allowed)

    def check(value: Value) -> str | None:
        return None if str(value).upper() in allowed else sentence

    return check


def parse(setting: Setting, text: str | None) -> Value:
    """The value of a text; None only for an unset one.

    Raises:
        BadSetting: the text has another type, or the value is not allowed.
    """
    if text is None:
        return None
    value = _parse_kind(setting, text.strip())
    check = setting.check or (_ANY_LIST if setting.kind is Kind.LIST else None)
    if check is not None:
        reason = check(value)
        if reason is not None:
            offender: object = value
            if isinstance(value, list) and reason.startswith("String"):
                offender = next((v for v in value if check(v) is not None), value)
            raise BadSetting(setting.name, offender, reason)
    return value


def _parse_kind(setting: Setting, text: str) -> Value:
    kind = setting.kind
    if kind is Kind.BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise BadSetting(setting.name, text, "Expected value to be either true or false")
        return lowered == "true"
    if kind is Kind.LIST:
        elements = [element.strip() for element in text.split(",")] if text else []
        return elements if setting.name.endswith(_WITH_REPETITIONS) else list(dict.fromkeys(elements))
    if kind is Kind.DOUBLE:
        return _double(setting, text)
    limit = _INTEGER_LIMIT.get(kind)
    if limit is None:
        return text
    number = _integer(setting, text)
    if not -limit - 1 <= number <= limit:
        raise BadSetting(setting.name, text, f"Not a number of type {kind.name}")
    return number


_JAVA_DOUBLE = re.compile(
    r"([+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+))"
    r"(?:(?<=[\d.])[fFdD])?"
)


def _double(setting: Setting, text: str) -> float:
    """A number as Java's Double.parseDouble reads it: also hexadecimal, and with the suffix of a type."""
    match = _JAVA_DOUBLE.fullmatch(text)
    if match is None:
        raise BadSetting(setting.name, text, "Not a number of type DOUBLE")
    digits = match[1]
    return float.fromhex(digits) if "x" in digits.lower() else float(digits)


def java_integer(text: str) -> int:
    """The number in a text as Java reads it; Python accepts `1_000` and blanks around it too.

    Raises:
        ValueError: the text is no number.
    """
    if "_" in text or text != text.strip():
        raise ValueError(text)
    return int(text)


def _integer(setting: Setting, text: str) -> int:
    try:
        return java_integer(text)
    except ValueError:
        raise BadSetting(setting.name, text, f"Not a number of type {setting.kind.name}") from None


def to_text(value: Value) -> str | None:
    """The text of a value, as Kafka prints it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return _java_double(value) if isinstance(value, float) else str(value)


def _java_double(value: float) -> str:
    """As Java's Double.toString: with a decimal point, and an exponent outside of 0.001 to 10,000,000."""
    if value == 0 or not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity", 0.0: repr(value)}.get(value, "NaN")
    if 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits = repr(abs(value)).partition("e")[0].replace(".", "").strip("0")
    mantissa, exponent = f"{value:.{max(len(digits) - 1, 1)}E}".split("E")
    return f"{mantissa}E{int(exponent)}"


def _java_text(value: object) -> str:
    if isinstance(value, float):
        return _java_double(value)
    return "[" + ", ".join(value) + "]" if isinstance(value, list) else str(value)
