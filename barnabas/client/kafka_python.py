"""kafka-python's packages without what their `__init__` imports, which is half of what a verb would wait for: the consumer,
the producer, the admin client and every message.

RULES    1. `prepare()` comes before the first import of a submodule. A program that has imported the packages keeps them.
         2. Our modules import messages from the submodule that defines them.
         3. A name that is missing in a package runs its `__init__`: `from kafka import KafkaConsumer` works as before.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_NEEDED: Final = {
    "kafka": None,
    "kafka.protocol.admin": "kafka.protocol.admin.groups",
    "kafka.protocol.consumer": "kafka.protocol.consumer.group",
}
"""The packages, and the submodule of each whose names kafka-python's connections import from the package."""


class _Package(ModuleType):
    """A package before its `__init__` has run."""

    def __getattr__(self, name: str) -> Any:
        needed = _NEEDED[self.__name__]
        if needed is not None and hasattr(import_module(needed), name):
            return getattr(import_module(needed), name)
        spec = self.__spec__
        assert isinstance(spec, ModuleSpec)
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment] # allowed for subclasses of ModuleType
        spec.loader.exec_module(self)
        return getattr(self, name)


def prepare() -> None:
    """Makes `import kafka.net` import that module and what it needs (rule 1)."""
    if "kafka" in sys.modules:
        return
    for name in _NEEDED:
        spec = find_spec(name)
        assert spec is not None, "kafka-python is a dependency of this package"
        package = module_from_spec(spec)
        package.__class__ = _Package
        sys.modules[name] = package
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, package)
