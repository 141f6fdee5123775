"""Run the benchmarks: python -m tests.benchmark [NAME]... ; without a name all of them, one after the other.

A benchmark is a module here with a `main() -> int`; its answer is 0 when what was aimed at was reached.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main(names: list[str]) -> int:
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}: choose from {', '.join(known)}.", file=sys.stderr)
        return 2
    missed = []
    for name in names or known:
        print(f"--- {name}", flush=True)
        sys.argv[1:] = []
        if import_module(f"tests.benchmark.{name}").main():
            missed.append(name)
    if missed:
        print(f"\nnot reached: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
