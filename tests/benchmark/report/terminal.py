"""Options of the benchmarks, and their progress line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.benchmark.builds import ROOT, Build, prepare
from tests.benchmark.interpreters import Interpreter
from tests.benchmark.report.rows import OTHER_BUILD, OURS, THEIRS
from tests.support.kafka import why_no_kafka

ROUNDS = 3


class Wanted(argparse.Namespace):
    """The arguments of a comparison with Apache Kafka."""

    quick: bool
    alone: bool
    against: Path | None
    docs: bool
    rounds: int
    quick_rounds: int
    only: list[str]
    python: Path | None
    interpreter: Interpreter
    """Of all builds."""
    builds: dict[str, Build]
    """Of Barnabas, by name: this one, and with --against the other one."""

    def wants(self, name: str) -> bool:
        return not self.only or any(text.lower() in name.lower() for text in self.only)


def options(
    prog: str, description: str | None, quick_rounds: int = ROUNDS, *, has_builds: bool = True
) -> argparse.ArgumentParser:
    """The options of a comparison with Apache Kafka.

    `quick_rounds` are those of --quick without --rounds; with `has_builds` two builds of Barnabas can be compared.
    """
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(quick_rounds=quick_rounds, against=None)
    parser.add_argument("--quick", action="store_true", help="shorter or smaller loads")
    rounds = f"number of rounds; default: {ROUNDS}, with --quick {quick_rounds}"
    parser.add_argument("--rounds", type=int, metavar="N", help=rounds)
    only = "loads whose name contains TEXT; may be repeated"
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help=only)
    parser.add_argument("--alone", action="store_true", help="Barnabas only, without Apache Kafka")
    if has_builds:
        against = "compare with the build in this checkout instead of Apache Kafka, on the same interpreter"
        parser.add_argument("--against", type=Path, metavar="CHECKOUT", help=against)
    python = "the CPython that runs Barnabas; default: an optimised one (PGO), if there is one"
    parser.add_argument("--python", type=Path, metavar="PATH", help=python)
    docs = "the plots into docs/figures too, and the table in Markdown on the terminal"
    parser.add_argument("--docs", action="store_true", help=docs)
    return parser


def parse_arguments(parser: argparse.ArgumentParser) -> Wanted:
    """The arguments with their defaults, and the builds; with --alone if Kafka is not available."""
    wanted = parser.parse_args(namespace=Wanted())
    if wanted.rounds is None:
        wanted.rounds = wanted.quick_rounds if wanted.quick else ROUNDS
    if not wanted.alone and wanted.against is None and (reason := why_no_kafka()) is not None:
        print(f"Nothing to compare with, so Barnabas alone: {reason}")
        wanted.alone = True
    if wanted.against is not None and not (wanted.against / "barnabas").is_dir():
        parser.error(f"--against: there is no barnabas/ in {wanted.against}")
    wanted.interpreter, python = prepare(wanted.python)
    wanted.builds = {OURS: Build(python, ROOT)}
    if wanted.against is not None:
        wanted.builds[OTHER_BUILD] = Build(python, wanted.against.resolve())
    for build in wanted.builds.values():
        build.compile_bytecode()
    return wanted


def results_name(prog: str, wanted: Wanted, *, is_part: bool = False) -> str:
    """The name of the results, such that those of a part do not overwrite those of all loads."""
    is_part = is_part or wanted.alone or bool(wanted.only)
    if wanted.against is not None:
        prog += "-builds"
    return f"{prog}{'-quick' if wanted.quick else ''}{'-part' if is_part else ''}"


def results_settings(wanted: Wanted) -> dict[str, object]:
    """The settings that the results keep."""
    return {
        "rounds": wanted.rounds,
        "rival": THEIRS if wanted.against is None else OTHER_BUILD,
        "interpreter": str(wanted.interpreter),
        "builds": {name: build.describe() for name, build in wanted.builds.items()},
    }


def show_progress(what: str) -> None:
    """Shows the current step on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", flush=True, file=sys.stderr)
