"""The builds of Barnabas that benchmarks start: an interpreter with the runtime dependencies, and the folder of the package.

    python -m tests.benchmark.builds      sets up the default interpreter's environment and names it

An environment contains what `pip install --editable .` installs. It is made once per interpreter in `.venv-bench/`, and again
when `pyproject.toml` or `constraints.txt` changes. The loads run in `.venv`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.embedded import Broker
from tests.benchmark.interpreters import OLDEST, Interpreter, best_interpreter, interpreter_at

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-bench"
_STAMP = "made-of"
_PACKAGES = ("barnabas", "broker", "protocol", "replication", "storage")


class Build(NamedTuple):
    python: Path
    """Of an environment."""
    checkout: Path
    """Or an unpacked wheel: any folder that contains `barnabas/`."""

    @property
    def command(self) -> list[str]:
        # -P: modules in the working directory do not shadow the standard library or the daemon.
        return [str(self.python), "-P", str(self.checkout / "barnabas" / "__main__.py")]

    def compile_bytecode(self) -> None:
        """Writes the bytecode of all modules, as pip does: without it a start takes more than twice as long."""
        folders = [folder for name in _PACKAGES if (folder := self.checkout / name).is_dir()]
        subprocess.run([self.python, "-m", "compileall", "-q", *folders], check=True)

    def describe(self) -> str:
        """The product's own words, and the commit of a checkout; raises SubprocessError if the build does not run."""
        version = _output([*self.command, "--version"])
        if not (self.checkout / ".git").exists():
            return version
        git = ["git", "-C", str(self.checkout), "describe", "--always", "--dirty", "--exclude=*"]
        return f"{version}, commit {_output(git)}"


class MeasuredBroker(Broker):
    """A broker of one build; the other arguments are those of `Broker`."""

    def __init__(self, build: Build, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._build = build

    def _command(self) -> list[str]:
        command = super()._command()
        return [*self._build.command, *command[command.index("serve") :]]


def _output(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def prepare(path: Path | None) -> tuple[Interpreter, Path]:
    """The interpreter at `path`, or the best one of this machine, and the Python of its environment; prints its name.

    Exits with the reason if it cannot be used.
    """
    interpreter = best_interpreter() if path is None else interpreter_at(path)
    if interpreter is None:
        sys.exit(f"{path} is not a CPython {'.'.join(map(str, OLDEST))} or newer.")
    print(f"Benchmarks run Barnabas on {interpreter}.")
    if not interpreter.is_optimised:
        print("This interpreter was built without PGO, so it is slower: --python PATH chooses another one.")
    return interpreter, environment(interpreter)


def environment(interpreter: Interpreter) -> Path:
    """The Python of the interpreter's environment, which is made if necessary; exits if that fails."""
    path_digest = hashlib.sha256(interpreter.path.encode()).hexdigest()[:8]
    folder = ENVIRONMENTS / f"{interpreter.version}-{path_digest}"
    python, stamp = folder / "bin" / "python", folder / _STAMP
    made_of = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")))
    if stamp.exists() and stamp.read_text() == made_of.hexdigest():
        return python
    print(f"setting up {folder.relative_to(ROOT)} for benchmarks", file=sys.stderr)
    # Debian's Python has no pip of its own: the one of .venv installs.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    try:
        subprocess.run([interpreter.path, "-m", "venv", "--without-pip", "--clear", folder], check=True)
        subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", "--editable", ROOT], check=True)
    except subprocess.CalledProcessError:
        sys.exit(f"No environment could be made with {interpreter}: --python PATH chooses another interpreter.")
    stamp.write_text(made_of.hexdigest())
    return python


if __name__ == "__main__":
    prepare(None)
