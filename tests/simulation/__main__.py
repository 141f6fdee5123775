"""Simulates one part of the product: `python -m tests.simulation [PART] [OPTION]...`, as `make sim` and `make sim-PART` do."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from tests.simulation.runner import run

PARTS = {
    "storage": "the storage engine on a disk that loses power",
    "commitlog": "the same with all logs in commit logs",
    "fulldisks": "both on disks that are full for a while",
    "coordinators": "group and transaction coordinators that restart between any two batches",
    "transactions": "a transactional producer whose broker is killed",
    "quorum": "a metadata quorum with crashes and network faults",
    "cluster": "a whole cluster on simulated disks, clocks and networks",
}

if __name__ == "__main__":
    described = "\n".join(f"  {name:14}{what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=f"Simulates a part:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=PARTS, nargs="?", default="storage", help="default: storage")
    sys.exit(run(parser, lambda part: import_module(f"tests.simulation.{part}.simulator").simulate))
