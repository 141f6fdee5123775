"""A setting of the file that a container has mounted, without the broker's configuration: commands start fast.

RULES    1. The last line of a name counts. A malformed line is skipped: the broker refuses the file, and a probe says more.
"""

from __future__ import annotations

from pathlib import Path

from barnabas.properties import properties_in


def mounted_setting(name: str, file: Path) -> str:
    """The value of a setting; empty without it, or without a readable file: a node does not start with such a one."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
    return dict(filter(None, properties_in(text))).get(name, "")
