"""`make cluster-faults`: faults on a cluster while clients work; here, or with --kind kafka on Apache Kafka's nodes."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.cluster import Cluster
from tests.faults.faults import FAULTS
from tests.faults.network import why_no_machines
from tests.faults.nodes import KINDS
from tests.faults.playing import Run, check, kept


def main() -> None:
    """Play one seed, or look at a folder that was kept."""
    parser = argparse.ArgumentParser(prog="make cluster-faults", description="Faults on a cluster of real nodes.")
    parser.add_argument("--count", type=int, default=10, help="so many faults")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new fault after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--nodes", type=int, default=3, choices=(3, 4, 5))
    parser.add_argument("--apart", action="store_true", help="three more nodes are controllers, and only that")
    parser.add_argument("--kind", choices=KINDS, default="barnabas")
    parser.add_argument("--only", choices=FAULTS, action="append", help="these faults only")
    parser.add_argument("--folder", type=Path, help="where histories and logs are kept; a new one under /tmp")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="look at the histories of a run again")
    options = parser.parse_args()
    if options.check is not None:
        check(options.check)
        print("no anomaly")
        return
    if (why := why_no_machines()) is not None:
        raise SystemExit(f"no machines here: {why}")
    # Whoever is asked to end, as by timeout(1), ends the nodes and the clients too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = options.folder or Path(tempfile.mkdtemp(prefix="cluster-faults-"))
    folder.mkdir(exist_ok=True)
    print(f"seed {options.seed}; histories and logs are kept in {folder}", flush=True)
    until_s = time.monotonic() + options.seconds
    with Cluster(options.kind, options.nodes, apart=options.apart) as cluster, kept(folder, cluster):
        run = Run(folder, cluster, options.seed, options.only)
        run.play(options.count, until_s)
    print(dict(run.done), flush=True)


if __name__ == "__main__":
    main()
