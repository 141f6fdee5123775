"""Shows or rewrites the differences of transcripts: `python -m tests.scenarios [--kafka] [--rewrite] FILE...`.

Without --kafka the scenarios run in memory; with it on Apache Kafka, one broker per set of settings.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from tests.scenarios.kafka_brokers import Brokers
from tests.scenarios.run import Runner, settings_of
from tests.support.group_harness import local_world

HERE = Path(__file__).parent


def main() -> int:
    """Run, compare, and rewrite if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--rewrite", action="store_true")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    differing = 0
    with Brokers() as brokers:
        for file in args.files or sorted(HERE.glob("*/*.txt")):
            text = file.read_text()
            transcript = brokers.run(text) if args.kafka else Runner(local_world(settings_of(text))).run(text)
            if transcript != text:
                differing += 1
                before, now = text.splitlines(keepends=True), transcript.splitlines(keepends=True)
                sys.stdout.writelines(difflib.unified_diff(before, now, str(file), "now"))
                if args.rewrite:
                    file.write_text(transcript)
    return 1 if differing and not args.rewrite else 0


if __name__ == "__main__":
    sys.exit(main())
