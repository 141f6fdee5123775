"""What the processes that work for a broker share: their pipes and their priority (`helper_process.py`).

RULES    1. The process exits at the end of its input: when the broker closes it, or dies.
         2. Only the broker that started the process has the other ends of the pipes, so pickles are safe.
         3. Ctrl-C and the end of the terminal are for the broker, which ends this process.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import BinaryIO, Final

BACKGROUND: Final = 10
"""A high nice value, so that the broker has priority."""


def begin(niceness: int) -> tuple[BinaryIO, BinaryIO]:
    """Sets up this process; returns its input and output."""
    for number in (signal.SIGINT, signal.SIGHUP):  # rule 3
        signal.signal(number, signal.SIG_IGN)
    os.nice(niceness)
    return sys.stdin.buffer, sys.stdout.buffer


def receive(source: BinaryIO) -> object:
    """The next value; None at the end of the input."""
    try:
        return pickle.load(source)  # noqa: S301  # rule 2
    except EOFError:
        return None


def send(target: BinaryIO, value: object) -> None:
    """Sends a value; exits if the broker has ended."""
    try:
        pickle.dump(value, target, pickle.HIGHEST_PROTOCOL)
        target.flush()
    except BrokenPipeError:
        os._exit(0)  # without flushing standard output, which would fail again
