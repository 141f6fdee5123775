"""Numbers as options take them: lists of partitions, and finite numbers."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from barnabas.client.errors import ArgumentError

_WHOLE = re.compile("[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


class FiniteRange(click.FloatRange):
    """A number that is neither infinite nor NaN, which is in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number. Raises click.BadParameter."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def whole_number(text: str) -> int | None:
    """The number of at most 18 digits; None if it is none."""
    return int(text) if _WHOLE.fullmatch(text) else None


def number_ranges(text: str) -> list[range]:
    """The partitions of a list such as 0,2,4-6. Raises ArgumentError."""
    found = []
    for part in text.split(","):
        numbers = _RANGE.fullmatch(part.strip())
        if numbers is None:
            raise ArgumentError(f"Partitions are written 0,2,4-6, not {text!r}.")
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first:
            raise ArgumentError(f"The partitions {part.strip()} are none: the lower number is first, as in 4-6.")
        found.append(range(first, last + 1))
    return found
