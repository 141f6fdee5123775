"""A setting of the file that a container has mounted, without the broker's configuration: commands start fast."""

from __future__ import annotations

import re
from pathlib import Path


def mounted_setting(name: str, file: Path) -> str:
    """The value of a setting; empty without it, or without a readable file: a node does not start with such a one."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.search(rf"^\s*{re.escape(name)}\s*[=:][ \t]*(\S.*)", text, re.MULTILINE)
    return "" if found is None else found[1]
