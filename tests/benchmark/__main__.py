"""Run the benchmarks: python -m tests.benchmark [NAME [OPTION]...]... ; without a name all of them, one by one.

A benchmark is a module here with a `main() -> int`; its answer is 0 when what was aimed at was reached. What stands
behind its name is for it, up to the next name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main(arguments: list[str]) -> int:
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    if arguments and arguments[0] not in known:
        print(f"There is no benchmark {arguments[0]}: choose from {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen: list[tuple[str, list[str]]] = []
    for argument in arguments or known:
        if argument in known:
            chosen.append((argument, []))
        else:
            chosen[-1][1].append(argument)
    missed = []
    for name, options in chosen:
        print(f"--- {name}", flush=True)
        sys.argv[1:] = options
        if import_module(f"tests.benchmark.{name}").main():
            missed.append(name)
    if missed:
        print(f"\nnot reached: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
