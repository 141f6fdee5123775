"""The command `barnabas`: dispatches verbs.

RULES    1. A daemon verb runs in this process with the daemon's folder first on the path, so that a user's module
            `storage` does not shadow ours; every other verb runs in the user's environment.
         2. Nothing is imported before the verb is known, so that the daemon starts faster.
         3. A parent that starts a daemon (`barnabas.Broker`) passes the read end of a pipe by its number in
            BARNABAS_PARENT_PIPE. When the write end is closed, the daemon gets SIGTERM, and SIGKILL after GRACE_S.
         4. With _BARNABAS_COMPLETE set, a shell asks for completions.
         5. Ctrl-C before a verb has its own signal handlers ends it without a stack trace.
NOT HERE The daemon's verbs (`broker/cli.py`), the other verbs (the modules of USER_VERBS).
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
from importlib import import_module

DAEMON_VERBS = ("serve", "format", "convert", "doctor", "dump-log")
ADMIN_VERBS = (
    "acls", "configs", "groups", "nodes", "partitions", "quotas", "schedules", "topics", "transactions", "users",
)  # fmt: skip
USER_VERBS = {
    **{verb: f"barnabas.cli.admin.{verb}" for verb in ADMIN_VERBS},
    "bench": "barnabas.cli.bench",
    "certs": "barnabas.certs_command",
    "cluster": "barnabas.cluster_command",
    "consume": "barnabas.cli.consume",
    "completion": "barnabas.cli.shell.completion",
    "health": "barnabas.health",
    "man": "barnabas.cli.shell.man",
    "pipeline": "barnabas.pipeline.command",
    "produce": "barnabas.cli.produce",
    "search": "barnabas.cli.search",
    "top": "barnabas.cli.top",
}
PARENT_PIPE = "BARNABAS_PARENT_PIPE"
GRACE_S = 10.0
_INTERRUPTED = 130

USAGE = """\
usage: barnabas VERB [OPTION]...

nodes of Barnabas:
  serve         run a broker in the foreground
  cluster       run several nodes on this machine
  format        format a node's log directories
  certs         make certificates for TLS
  health        check whether a node answers
  doctor        check and repair the log directories of a stopped node
  dump-log      print the contents of log files
  convert       change the storage engine of a stopped node

any Kafka cluster, --bootstrap HOST:PORT:
  consume       print the records of topics
  produce       write records to topics
  topics        list, describe, create, alter, trim, delete
  groups        list, describe, show lag, reset and delete offsets, delete
  configs       list, describe, set, delete configs of topics, brokers, groups, client metrics
  acls          list, add, remove access rights
  users         list, set, delete SCRAM users
  quotas        list, set, delete quotas of users, client ids, addresses
  nodes         show brokers, quorum, features, log directories
  partitions    reassign replicas, elect leaders
  transactions  list, describe, find hanging ones, abort
  top           show rates, lag and nodes, live
  bench         measure throughput and latency
  pipeline      run Spark jobs: archive, audit, replay, table, aggregate, search, stats

clusters of Barnabas, --bootstrap HOST:PORT:
  search        find records through a key index
  schedules     list schedule topics and their pending records, cancel

barnabas VERB --help lists the options of a verb; barnabas man VERB prints its man page.
barnabas completion bash|zsh|fish prints a completion script for the shell.
barnabas --version prints the version and the build.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # rule 5
        return _INTERRUPTED


def _run(args: list[str]) -> int:
    if "_BARNABAS_COMPLETE" in os.environ:
        found: int = import_module("barnabas.cli.shell.completion").complete(os.environ["_BARNABAS_COMPLETE"])
        return found
    verb = args[0] if args else "--help"
    if verb in DAEMON_VERBS:
        return _run_daemon(args)
    if verb in USER_VERBS:
        exit_code: int = import_module(USER_VERBS[verb]).main(args[1:])
        return exit_code
    if verb in {"--help", "-h", "help"}:
        sys.stdout.write(USAGE)
        return 0
    if verb == "--version":
        sys.stdout.write(f"barnabas {import_module('importlib.metadata').version('barnabas')} ({describe_build()})\n")
        return 0
    sys.stderr.write(f"barnabas: there is no verb {verb!r}; barnabas --help lists them.\n")
    return 2


def daemon_folder() -> str:
    """The folder of `broker`, `protocol`, `storage`, `replication`: in an installed package, or beside this one."""
    package = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(package, "_daemon")
    return installed if os.path.isdir(installed) else os.path.dirname(package)


def describe_build() -> str:
    """Which build this interpreter runs; figures of benchmarks name it."""
    return "compiled" if is_compiled() else "pure Python"


def is_compiled() -> bool:
    """Whether the daemon's hot path runs from shared libraries of this interpreter (docs/decisions/0057)."""
    suffixes = import_module("importlib.machinery").EXTENSION_SUFFIXES
    library = os.path.join(daemon_folder(), "barnabas__mypyc")
    return any(os.path.exists(library + suffix) for suffix in suffixes)


def _run_daemon(args: list[str]) -> int:
    sys.path.insert(0, daemon_folder())
    parent = os.environ.pop(PARENT_PIPE, None)
    if parent is not None:
        _thread.start_new_thread(_exit_with_parent, (int(parent),))
    _open_standard_streams()
    if args[0] == "serve":
        gc.disable()  # imports and startup create no garbage; the broker enables it when it is ready
    exit_code: int = import_module("broker.cli").main(args)
    return exit_code


def _open_standard_streams() -> None:
    """Opens /dev/null for closed standard streams, whose descriptors sockets and log files would get.

    libuv ends a process that closes such a socket, and what is written to standard error would be in a log file.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _exit_with_parent(pipe: int) -> None:
    """Waits for the end of the pipe, then stops this process."""
    import signal
    import time

    try:
        while os.read(pipe, 64):
            pass
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
