"""A setting of the file that a container has mounted, without the broker's configuration: commands start fast.

RULES    1. The file has the format that the broker reads: the last line of a name counts, a backslash at the end of a line
            continues it, and one before another character is no part of the value.
"""

from __future__ import annotations

import re
from pathlib import Path

_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def mounted_setting(name: str, file: Path) -> str:
    """The value of a setting; empty without it, or without a readable file: a node does not start with such a one."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
    setting = re.compile(rf"{re.escape(name)}\s*[=:]\s*(.*)")
    value = joined = ""
    for line in (*map(str.strip, text.splitlines()), ""):  # the last one ends a line that is continued
        if not joined and line.startswith(("#", "!")):
            continue
        joined += line
        if _CONTINUES.search(line):
            joined = joined[:-1]
            continue
        found = setting.fullmatch(joined)
        value = value if found is None else found[1]
        joined = ""
    return re.sub(r"\\(.)", r"\1", value)
