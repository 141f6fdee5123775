"""Options of the benchmarks, and their progress line."""

from __future__ import annotations

import argparse
import sys

from tests.support.kafka import why_no_kafka

ROUNDS = 3


def options(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The options of a comparison with Apache Kafka; the description explains them."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawTextHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--docs", action="store_true", help=argparse.SUPPRESS)
    return parser


def only(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --only TEXT, for the loads whose names contain it; may be repeated."""
    parser.add_argument("--only", action="append", default=[], help=argparse.SUPPRESS)
    return parser


def results_name(prog: str, wanted: argparse.Namespace) -> str:
    """The name of the results, such that those of a part do not overwrite those of all loads."""
    is_part = wanted.alone or wanted.only
    return f"{prog}{'-quick' if wanted.quick else ''}{'-part' if is_part else ''}"


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; with --alone if Kafka is not available."""
    wanted = parser.parse_args()
    if not wanted.alone and (reason := why_no_kafka()) is not None:
        print(f"Nothing to compare with, so Barnabas alone: {reason}")
        wanted.alone = True
    return wanted


def show_progress(what: str) -> None:
    """Shows the current step on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", flush=True, file=sys.stderr)
