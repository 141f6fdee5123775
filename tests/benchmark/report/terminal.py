"""What whoever starts a benchmark may ask for, and is told while it runs."""

from __future__ import annotations

import argparse
import sys

from tests.support.kafka import why_no_kafka

ROUNDS = 3


def options(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The options that a comparison with Apache Kafka has; the description says what they mean."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawTextHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--docs", action="store_true", help=argparse.SUPPRESS)
    return parser


def only(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """One more option: --only TEXT, for the loads that have it in their names; may be repeated."""
    parser.add_argument("--only", action="append", default=[], help=argparse.SUPPRESS)
    return parser


def results_name(prog: str, wanted: argparse.Namespace) -> str:
    """What the results are called, so that those of a part do not take the place of those of all loads."""
    is_part = wanted.alone or wanted.only
    return f"{prog}{'-quick' if wanted.quick else ''}{'-part' if is_part else ''}"


def wishes(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for; Barnabas alone where there is nothing to compare it with."""
    wanted = parser.parse_args()
    if not wanted.alone and (reason := why_no_kafka()) is not None:
        print(f"Nothing to compare with, so Barnabas alone: {reason}")
        wanted.alone = True
    return wanted


def say(what: str) -> None:
    """Tell whoever looks on what is going on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", flush=True, file=sys.stderr)
