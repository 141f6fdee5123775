"""Shows the results of earlier runs again: make bench ARGS="again [--docs] [FILE.json]..."

Without a FILE the last complete runs; --docs writes the plots to docs/figures too, and tables into pages
that have a place for them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.benchmark.report.publish import FOLDER, publish
from tests.benchmark.report.rows import Results

COMPLETE_RUNS = ("broker", "partitions", "engines")


def main() -> int:
    parser = argparse.ArgumentParser(prog="again", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("files", type=Path, nargs="*")
    wanted = parser.parse_args()
    found = [path for name in COMPLETE_RUNS if (path := FOLDER / f"{name}.json").exists()]
    outcomes = [publish(Results.read(path), docs=wanted.docs) for path in wanted.files or found]
    if not outcomes:
        print(f"Nothing was measured yet: there is no JSON in {FOLDER}.", file=sys.stderr)
    return max(outcomes, default=2)
