"""A process that does not outlive whoever started it, also when that is killed: the kernel sees to it.

What it starts itself has to see that it went.
"""

from __future__ import annotations

from collections.abc import Sequence


def mortal(words: Sequence[str]) -> list[str]:
    """The command so that it is killed when the thread that starts it ends."""
    return ["setpriv", "--pdeathsig", "KILL", *words]
