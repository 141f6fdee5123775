"""`make cluster-faults`: faults in a cluster while clients work, on Barnabas or, with --kind kafka, on Apache Kafka."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.exactly_once.loop import check_result
from tests.faults.cluster import Cluster
from tests.faults.fault_run import Run, nodes_logged_to
from tests.faults.faults import FAULTS
from tests.faults.network import why_no_namespaces
from tests.faults.nodes import KINDS
from tests.support.storage_engine import use_engine_of


def main() -> None:
    """Runs one seed, or checks the histories of an earlier run."""
    parser = argparse.ArgumentParser(prog="make cluster-faults", description="Faults on a cluster of real nodes.")
    parser.add_argument("--count", type=int, default=10, help="number of faults")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="starts no new fault after this time")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--nodes", type=int, default=3, choices=(3, 4, 5))
    parser.add_argument("--apart", action="store_true", help="three additional nodes are dedicated controllers")
    parser.add_argument("--kind", choices=KINDS, default="barnabas")
    parser.add_argument("--only", choices=FAULTS, action="append", help="only these faults")
    parser.add_argument("--folder", type=Path, help="folder for histories and logs; default: a new one under /tmp")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="check the histories of an earlier run")
    options = parser.parse_args()
    if options.check is not None:
        check_result(options.check)
        print("no anomaly")
        return
    if (why := why_no_namespaces()) is not None:
        raise SystemExit(f"no machines here: {why}")
    # SIGTERM, as timeout(1) sends it, ends the nodes and the clients too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = options.folder or Path(tempfile.mkdtemp(prefix="cluster-faults-"))
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} holds another run")
    print(f"seed {options.seed}; histories and logs are kept in {folder}", flush=True)
    until_s = time.monotonic() + options.seconds
    with Cluster(options.kind, options.nodes, apart=options.apart) as cluster, nodes_logged_to(folder, cluster):
        run = Run(folder, cluster, options.seed, options.only)
        run.play(options.count, until_s)
    print(dict(run.done), flush=True)


if __name__ == "__main__":
    use_engine_of()
    main()
