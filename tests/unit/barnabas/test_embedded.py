"""`barnabas.Broker` with a stand-in for the daemon. The fixture `kafka_broker` and `tests/packaging` use a real one."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import barnabas
from barnabas.__main__ import PARENT_PIPE as PIPE_THAT_THE_DAEMON_READS
from barnabas.client.client_settings import read_properties, security_of
from barnabas.cluster import Cluster
from barnabas.embedded import PARENT_PIPE, Broker, BrokerError
from barnabas.security import SecurityError

READY = "print('barnabas ready on 127.0.0.1:4321 (node 1, 0.01 s)', flush=True)"
UNTIL_STOPPED = "signal.sigwait({signal.SIGTERM})"
IGNORES_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
HEAD = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})"


class StandIn(Broker):
    """A broker whose daemon is a line of Python."""

    def __init__(self, *statements: str, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.statements = "\n".join((HEAD, *statements))

    def _command(self) -> list[str]:
        return [sys.executable, "-c", self.statements]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_barnabas_exports_the_broker() -> None:
    assert barnabas.Broker is Broker
    with pytest.raises(AttributeError, match="has no attribute 'Brokr'"):
        _ = barnabas.Brokr


def test_the_port_is_read_from_the_ready_line() -> None:
    with StandIn(READY, UNTIL_STOPPED) as broker:
        assert broker.bootstrap == "127.0.0.1:4321"
        assert broker.ready_line.endswith("(node 1, 0.01 s)")
        assert broker.is_running
    assert not broker.is_running


def test_the_error_of_a_failed_start_is_the_daemons_message() -> None:
    words = "sys.stderr.write('2026 INFO loading\\nbarnabas: Port 9092 is taken: choose another.\\n'); sys.exit(1)"
    with pytest.raises(BrokerError, match=r"^The broker did not start: Port 9092 is taken: choose another\.$"):
        StandIn(words).start()


def test_the_error_of_a_failed_start_without_a_message_is_the_end_of_the_log() -> None:
    with pytest.raises(BrokerError, match="ZeroDivisionError"):
        StandIn("1/0").start()
    with pytest.raises(BrokerError, match="ended with 7 without a message"):
        StandIn("sys.exit(7)").start()


def test_a_daemon_that_is_not_ready_in_time_is_killed() -> None:
    broker = StandIn("sys.stderr.write(f'pid {os.getpid()}\\n')", UNTIL_STOPPED, start_timeout_s=0.5)
    with pytest.raises(BrokerError, match=r"not ready within 0\.5 s"):
        broker.start()
    assert not is_alive(int(broker.log().split()[1]))
    broker.close()


def test_an_unexpected_first_line_is_refused() -> None:
    with pytest.raises(BrokerError, match="first line is not its ready line: hello"):
        StandIn("print('hello', flush=True)", UNTIL_STOPPED).start()


def test_a_daemon_that_does_not_stop_is_killed() -> None:
    broker = StandIn(IGNORES_SIGTERM, READY, "signal.pause()", stop_timeout_s=0.3)
    with broker:
        pid = broker.pid
    assert not is_alive(pid)


def test_stop_reports_a_crash() -> None:
    broker = StandIn(READY, "sys.stdin.read()", "sys.stderr.write('barnabas: the disk failed\\n')", "sys.exit(3)")
    broker.start()
    os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(BrokerError, match="ended with 3:\nbarnabas: the disk failed"):
        broker.stop()
    broker.close()


def test_a_restarted_broker_keeps_its_port_and_data() -> None:
    with StandIn(READY, UNTIL_STOPPED) as broker:
        (broker.data_dir.parent / "mark").write_text("kept")
        first = broker.pid
        broker.kill()
        assert not is_alive(first)
        broker.restart()
        assert broker.port == 4321
        assert (broker.data_dir.parent / "mark").read_text() == "kept"
        real = Broker._command(broker)
        assert real[real.index("--listen") + 1] == "127.0.0.1:4321"


def test_the_command_line_has_directory_address_and_settings(tmp_path: Path) -> None:
    broker = Broker(tmp_path, 1234, {"num.partitions": 4, "auto.create.topics.enable": False}, arguments=["-v"])
    command = broker._command()
    assert command[1] == "-P"
    assert command[3:] == [
        *("serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:1234"),
        *("--set", "num.partitions=4", "--set", "auto.create.topics.enable=false", "-v"),
    ]
    broker.close()
    assert tmp_path.exists(), "a directory that was handed in is the user's"


def test_a_relative_directory_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test changed its working directory and restarted the broker, which was empty then: its directory was another one."""
    (other := tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    broker, cluster = Broker("data"), Cluster(1, data_dir="cluster")
    monkeypatch.chdir(other)
    for node, folder in ((broker, tmp_path / "data"), (cluster.nodes[1], tmp_path / "cluster" / "node-1")):
        command = node._command()
        assert command[command.index("--data-dir") + 1] == str(folder)
    assert cluster.nodes[1].log_path == tmp_path / "cluster" / "node-1.log"


def test_close_deletes_a_temporary_directory() -> None:
    with StandIn(READY, UNTIL_STOPPED) as broker:
        folder = broker.log_path.parent
        assert folder.exists()
    assert not folder.exists()


def test_garbage_collection_deletes_the_directory_of_a_stopped_broker() -> None:
    broker = StandIn("sys.exit(1)")
    folder = broker.log_path.parent
    with pytest.raises(BrokerError):
        broker.start()
    assert folder.exists()
    del broker
    gc.collect()
    assert not folder.exists()


def test_an_unreferenced_running_broker_runs_until_the_process_exits(tmp_path: Path) -> None:
    program = f"{STARTER}\nprint(broker.log_path.parent)\ndel broker"
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        input="",
        capture_output=True,
        text=True,
        env={**os.environ, "DAEMON": DAEMON_IN_THE_FACE, "TMPDIR": str(tmp_path)},
        timeout=30,
        check=True,
    )
    pid, folder = outcome.stdout.split()
    assert folder.startswith(str(tmp_path))
    assert not is_alive(int(pid))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start_again", [Broker.start, Broker.restart])
def test_a_broker_that_crashed_starts_again(start_again: Callable[[Broker], Broker]) -> None:
    with StandIn(READY, UNTIL_STOPPED) as broker:
        os.kill(broker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
        start_again(broker)
        assert broker.is_running


def test_signals_of_the_terminal_do_not_reach_the_daemon() -> None:
    """Ctrl-C ends the loop of a consumer at a prompt, or a test; the broker remains."""
    with StandIn(READY, UNTIL_STOPPED) as broker:
        assert os.getpgid(broker.pid) != os.getpgid(0)


def test_a_forked_process_leaves_daemon_and_data_alone() -> None:
    """It may end inside the block, or with its own `close`."""
    with StandIn(READY, UNTIL_STOPPED) as broker:
        child = os.fork()
        if child == 0:
            broker.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert broker.log_path.parent.exists()
        assert is_alive(broker.pid)


def test_javas_client_properties_are_ascii_and_read_as_they_were() -> None:
    user, password = "j\xfcrgen", 'p\xe4\u2603\U0001f600\\"s'
    with_users = barnabas.Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", users={user: password})
    broker = Broker(security=with_users)
    path = broker.write_client_properties()
    assert path.read_bytes().isascii(), "Java reads it as Latin-1"
    security = security_of(read_properties(path))
    broker.close()
    assert (security.username, security.password) == (user, password)


@pytest.mark.parametrize(
    ("mechanism", "user", "password", "reason"),
    [
        ("SCRAM-SHA-512", "a,b", "x", "cannot be one of SCRAM"),
        ("SCRAM-SHA-256", "j\xfcrgen", "x", "cannot be one of SCRAM"),
        ("PLAIN", "a", "", "needs a name and a password"),
        ("PLAIN", "", "x", "needs a name and a password"),
    ],
)
def test_a_user_that_could_not_log_in_is_refused(mechanism: str, user: str, password: str, reason: str) -> None:
    with pytest.raises(SecurityError, match=reason):
        barnabas.Security(mechanism=mechanism, users={user: password})
    barnabas.Security(protocol="SSL", users={"a": ""})  # has no passwords


def test_starting_a_closed_broker_is_refused() -> None:
    with StandIn(READY, UNTIL_STOPPED) as broker:
        pass
    with pytest.raises(BrokerError, match="The broker is closed"):
        broker.restart()


def test_starting_twice_is_refused() -> None:
    with StandIn(READY, UNTIL_STOPPED) as broker, pytest.raises(BrokerError, match="running already"):
        broker.start()


DAEMON_IN_THE_FACE = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
import barnabas.__main__ as face
import types
def main(arguments):
    print('barnabas ready on 127.0.0.1:4321 (node 1, 0.01 s)', flush=True)
    signal.sigwait({{signal.SIGTERM}})
    return 0
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
sys.modules['broker'] = types.ModuleType('broker')
sys.modules['broker.cli'] = cli = types.ModuleType('broker.cli')
cli.main = main
sys.exit(face.main(['serve']))
"""

STARTER = """
import os, signal, sys
from barnabas.embedded import Broker
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
class StandIn(Broker):
    def _command(self):
        return [sys.executable, '-c', os.environ['DAEMON']]
broker = StandIn().start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, None], ids=["killed", "interrupted", "forgetful"])
def test_no_daemon_outlives_its_parent(end: signal.Signals | None, tmp_path: Path) -> None:
    assert PARENT_PIPE == PIPE_THAT_THE_DAEMON_READS
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DAEMON": DAEMON_IN_THE_FACE, "TMPDIR": str(tmp_path)},
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    with starter, starter.stdin, starter.stdout:
        pid = int(starter.stdout.readline())
        gone = os.pidfd_open(pid)
        if end is not None:
            starter.send_signal(end)
        else:
            starter.stdin.close()
        assert select.select([gone], [], [], 5)[0], "the daemon is still there"
        os.close(gone)


def test_a_broker_starts_beside_a_thousand_open_files(tmp_path: Path) -> None:
    """`select` refuses descriptors above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this process may not open 2,048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Broker(tmp_path / "data") as broker:
            assert broker.is_running
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
