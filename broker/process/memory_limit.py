"""How much memory this process may count on: the machine's, or less where a control group says so."""

from __future__ import annotations

import os
from typing import Final

_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes(limits: tuple[str, ...] = _LIMITS) -> int:
    """The least of what the machine has and the control group allows."""
    allowed = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:  # another version of control groups, or none
            continue
        if text.isdigit():  # else "max"
            allowed.append(int(text))
    return min(allowed)
