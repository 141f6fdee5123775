"""A broker for tests and development: a daemon in its own process, stopped at the end of the `with` block.

    with barnabas.Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

RULES    1. Nothing of the daemon is imported here: it is another process with a command line, a ready line and Kafka's
            protocol.
         2. If the daemon does not start, the error contains the daemon's own error message.
         3. No daemon outlives the process that started it, even after SIGKILL: the daemon has the read end of a pipe, and only
            its parent has the write end. (A parent-death signal would be sent when the starting *thread* ends.)
         4. A temporary directory is deleted by `close()`, at the end of the `with` block, when a broker object without a
            running daemon is garbage-collected, and at the exit of this process.
         5. A restarted broker keeps its port and data, also if this process has changed its working directory.
         6. The daemon has a process group of its own: Ctrl-C in the terminal interrupts this process, not the daemon.
         7. A forked process leaves the daemon and its data alone.
         8. Only the standard library is used; certificates need `cryptography`.
NOT HERE Certificates, users and the settings of clients (`security.py`), the pytest fixtures (`pytest_plugin.py`), the
         daemon's side of the pipe (`__main__.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from barnabas.security import BrokerSecurity, Security, SecurityError

READY = re.compile(r"^barnabas ready on (?P<host>.+):(?P<port>\d+) \(")
PARENT_PIPE = "BARNABAS_PARENT_PIPE"
MAIN = Path(__file__).with_name("__main__.py")
LOG_TAIL_LINES = 15
ERROR_PREFIX = "barnabas: "
"""Marks the daemon's error messages among its log lines."""


class BrokerError(RuntimeError):
    """The daemon failed; the message has the reason, in the daemon's own words if possible."""


class Service(ABC):
    """Starts at the beginning of a `with` block, and closes at its end."""

    def __enter__(self) -> Self:
        try:
            self._ensure_started()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _ensure_started(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Stop, and delete temporary data. May be called twice."""


class Broker(Service):
    """One Barnabas node, broker and controller, in its own process.

    Without `data_dir` the data are in a temporary directory, which `close()` or the end of the `with` block deletes.
    Port 0 takes a free one. `settings` have Kafka's names, as in `{"num.partitions": 4}`.
    With `security`, clients connect with the settings that `client_settings` returns. With a `data_dir` to keep, name the
    users: those of SCRAM are stored there when it is created.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        settings: Mapping[str, object] | None = None,
        *,
        security: Security | None = None,
        host: str = "127.0.0.1",
        arguments: Sequence[str] = (),
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        self.host = host
        self.port = port
        self.settings = {name: _as_text(value) for name, value in (settings or {}).items()}
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self.ready_line = ""
        self._arguments = list(arguments)
        self._folder = Path(tempfile.mkdtemp(prefix="barnabas-"))
        self._owner = os.getpid()
        weakref.finalize(self, remove_folder, self._folder, self._owner)
        self.data_dir = self._folder / "data" if data_dir is None else Path(data_dir).absolute()
        self.log_path = self._folder / "broker.log"
        self._security = None if security is None else BrokerSecurity(security, self._folder / "certs", host)
        self._process: subprocess.Popen[bytes] | None = None
        self._parent_pipe: int | None = None
        self._log_end = 0

    def _ensure_started(self) -> None:
        if self._process is None:
            self.start()

    @property
    def bootstrap(self) -> str:
        """The bootstrap server for clients."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def client_settings(self, library: str, user: str | None = None) -> dict[str, Any]:
        """What a client needs to connect: keyword arguments, a configuration dictionary, or Java's properties.

        The library is kafka-python, aiokafka, confluent-kafka or java; the user is the first of `security` if None.

        Raises:
            SecurityError: the library or the user is unknown, or the broker has no security.
        """
        if self._security is None:
            raise SecurityError("the broker has no security: clients need only its bootstrap server")
        return self._security.client_settings(library, self.bootstrap, user)

    def write_client_properties(self, user: str | None = None) -> Path:
        """The settings of Java's clients as a file, for `--command-config`; `close()` deletes it.

        Raises:
            SecurityError: as `client_settings`.
        """
        path = self._folder / f"client-{len(list(self._folder.iterdir()))}.properties"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            for name, value in self.client_settings("java", user).items():
                file.write(f"{name}={_in_properties(str(value))}\n")
        return path

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        if self._process is None:
            raise BrokerError("The broker is not running.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the daemon runs."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The daemon's standard error so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> Self:
        """Starts the daemon and waits until it accepts requests."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Starts the daemon; call `wait_until_ready` next."""
        if self.is_running:
            raise BrokerError(f"The broker is running already, as process {self.pid}.")
        if not self.log_path.parent.exists():
            raise BrokerError("The broker is closed, and its temporary folder deleted: create another one.")
        self._end_process(kill=True)  # cleans up after a daemon that ended by itself
        self._log_end = self.log_path.stat().st_size if self.log_path.exists() else 0
        read_end, write_end = os.pipe()
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(read_end),
                    pass_fds=(read_end,),
                    process_group=0,
                )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._parent_pipe = write_end
        _running[self] = os.getpid()

    def wait_until_ready(self) -> Self:
        """Waits until the launched daemon accepts requests; kills it if it does not in time."""
        try:
            self._read_ready_line(self._log_end)
        except BaseException:
            self._end_process(kill=True)
            raise
        return self

    def signal(self, number: int) -> None:
        """Sends a signal to the daemon, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    @property
    def exit_code(self) -> int | None:
        """The exit code of a daemon that ended by itself; otherwise None."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Stops cleanly and waits; the data remain, and `start` uses them again."""
        process = self._process
        self._end_process(kill=False)
        if process is not None and process.returncode != 0:
            raise BrokerError(f"The broker ended with {process.returncode}:\n{self._log_tail(0)}")

    def kill(self) -> None:
        """SIGKILL, like a crash; the data remain."""
        self._end_process(kill=True)

    def restart(self) -> Self:
        """Stops if it runs, then starts on the same port and data."""
        if self.is_running:
            self.stop()
        return self.start()

    def close(self) -> None:
        """Stops, and deletes a temporary directory. May be called twice."""
        try:
            self._end_process(kill=False)
        finally:
            remove_folder(self._folder, self._owner)

    def _command(self) -> list[str]:
        # -P: modules in the working directory do not shadow the standard library or the daemon.
        command = [sys.executable, "-P", str(MAIN), "serve", "--data-dir", str(self.data_dir)]
        settings = self.settings
        if self._security is not None:
            settings = self._security.broker_settings(self.bootstrap) | settings
            command += self._security.arguments()
        if "listeners" not in settings:
            command += ["--listen", self.bootstrap]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self._arguments

    def _read_ready_line(self, log_end: int) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self.start_timeout_s
        poll = select.poll()  # select() refuses descriptors above 1,023, which a test with many connections has
        poll.register(process.stdout, select.POLLIN)
        output = b""
        while b"\n" not in output:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise BrokerError(
                    f"The broker was not ready within {self.start_timeout_s:g} s.\n{self._log_tail(log_end)}"
                )
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                process.wait()
                reason = self._error_sentence(log_end) or f"it ended with {process.returncode} without a message"
                raise BrokerError(f"The broker did not start: {reason}")
            output += chunk
        self.ready_line = output.decode().splitlines()[0]
        match = READY.match(self.ready_line)
        if match is None:
            raise BrokerError(f"The broker's first line is not its ready line: {self.ready_line}")
        self.port = int(match["port"])

    def _end_process(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        parent_pipe, self._parent_pipe = self._parent_pipe, None
        _running.pop(self, None)
        if process is not None:
            if kill:
                process.kill()
            else:
                process.terminate()
            try:
                process.wait(self.stop_timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if parent_pipe is not None:
            with contextlib.suppress(OSError):
                os.close(parent_pipe)

    def _error_sentence(self, log_end: int) -> str:
        """The daemon's error message; without one, the end of its log."""
        lines = self._log_tail(log_end).splitlines()
        sentences = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
        return " ".join(sentences) or "\n".join(lines)

    def _log_tail(self, log_end: int) -> str:
        text = self.log_path.read_bytes()[log_end:].decode(errors="replace").strip()
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


_running: dict[Broker, int] = {}
"""Brokers with a running daemon, and the process that started it; keeps a reference to them."""


@atexit.register
def _close_all() -> None:
    for broker, starter in list(_running.items()):
        if starter == os.getpid():
            broker.close()


def remove_folder(folder: Path, owner: int) -> None:
    """Deletes a folder, unless this is a process that the owner has forked."""
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _in_properties(text: str) -> str:
    """A value in a file of Java's properties, which Java reads as Latin-1: with escapes it is ASCII."""
    return "".join(map(_escaped, text.replace("\\", "\\\\")))


def _escaped(char: str) -> str:
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _environment(read_end: int) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
    environment[PARENT_PIPE] = str(read_end)
    return environment
