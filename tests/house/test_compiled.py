"""What mypyc refuses, or compiles to something else than CPython runs, in the modules that a compiled build compiles.

RULES    1. No class inside a function, and no `@runtime_checkable` protocol: mypyc refuses them, some only at the import.
         2. A field of a NamedTuple or dataclass names a built-in class that mypyc knows, or quotes it: others raise KeyError.
         3. The body of `for ... in range(n)` assigns no name of `range(n)`: compiled, the number of rounds changes.
         4. A generator expression is the argument of a function in LAZY: anywhere else it becomes a list, evaluated at once.
         5. A property overrides no attribute and an attribute no property: compiled code reads the attribute of the base class.
         6. Nothing is copied by `copy` or `replace`, and no `__dict__` is read: compiled objects have none.
         7. No function inside a function refers to a sibling: compiled, both are in one environment, and the cycle keeps all
            that it refers to, such as open files, until the garbage collector runs.
         8. No interpreted class of the product extends a compiled one.
         9. No class extends `ABC`: compiled, all such classes share one cache of `isinstance`, which then answers for another
            class. A plain base class raises NotImplementedError.
        10. The list names modules, each once, and mypyc is pinned as mypy is.
NOT HERE What is compiled and why: docs/decisions/0057; which tests a compiled build skips: the mark `pure_python`.
"""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections.abc import Iterator

import pytest

from tests.house.sources import LAYERS, ROOT, Module, dotted, modules

HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"][
    "custom"
]
COMPILED = frozenset(f"{name.replace('.', '/')}.py" for name in HOOK["modules"])
LAZY = frozenset({
    "all", "any", "dict", "frozenset", "list", "max", "min", "next", "set", "sorted", "sum", "tuple", "extend", "join",
    "update",
})  # fmt: skip
"""Functions and methods whose generator argument mypyc compiles to a loop."""
KNOWN = frozenset(
    {"bool", "bytearray", "bytes", "dict", "float", "frozenset", "int", "list", "range", "set", "str", "tuple", "type"}
)
COPIES = frozenset({"copy", "copy.copy", "copy.deepcopy", "deepcopy", "dataclasses.replace", "replace", "vars"})


def found_in(module: Module) -> Iterator[tuple[int, str]]:
    """Line and description of each violation of rules 1 to 4, 6, 7 and 9."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ClassDef):
                    yield inner.lineno, f"class {inner.name} inside a function"
            yield from _cycles(node)
        elif isinstance(node, ast.ClassDef):
            yield from _class_violations(node)
        elif isinstance(node, ast.For):
            names = _assigned(node.body) & _range_names(node.iter)
            if names:
                yield node.lineno, f"range of {', '.join(names)}, which the body assigns"
        elif isinstance(node, ast.Call) and dotted(node.func) in COPIES:
            yield node.lineno, f"{dotted(node.func)}()"
        elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
            yield node.lineno, "__dict__"
    yield from _stored_generators(module.tree)


def _cycles(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    nested = [
        node for node in ast.walk(function) if isinstance(node, ast.FunctionDef | ast.Lambda) and node is not function
    ]
    for node in nested:
        used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}
        for sibling in nested:
            if isinstance(sibling, ast.FunctionDef) and sibling is not node and sibling.name in used:
                yield sibling.lineno, f"{sibling.name}, which a function beside it refers to"


def _class_violations(node: ast.ClassDef) -> Iterator[tuple[int, str]]:
    decorators = {dotted(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list}
    if "runtime_checkable" in decorators:
        yield node.lineno, f"runtime_checkable {node.name}"
    if "ABC" in map(dotted, node.bases):
        yield node.lineno, f"ABC as base of {node.name}"
    if "dataclass" in decorators or "NamedTuple" in map(dotted, node.bases):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.annotation, ast.Name):
                name = field.annotation.id
                if hasattr(builtins, name) and name not in KNOWN:
                    yield field.lineno, f"field of type {name}"


def _range_names(node: ast.expr) -> set[str]:
    if not isinstance(node, ast.Call) or dotted(node.func) != "range":
        return set()
    found = {dotted(name) for name in ast.walk(node) if isinstance(name, ast.Name | ast.Attribute)}
    return found - {"", "range"}


def _assigned(body: list[ast.stmt]) -> set[str]:
    nodes = (node for statement in body for node in ast.walk(statement))
    return {
        dotted(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def _stored_generators(tree: ast.Module) -> Iterator[tuple[int, str]]:
    consumed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
            if name in LAZY:
                consumed.update(map(id, node.args))
    for node in ast.walk(tree):
        if isinstance(node, ast.GeneratorExp) and id(node) not in consumed:
            yield node.lineno, "a generator expression that becomes a list"


class Attributes:
    """The names of a class: properties, and attributes with a value of their own."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.bases = [dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
        self.properties: set[str] = set()
        self.attributes: set[str] = set()
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and "property" in map(dotted, part.decorator_list):
                self.properties.add(part.name)
            elif isinstance(part, ast.AnnAssign | ast.Assign):
                targets = [part.target] if isinstance(part, ast.AnnAssign) else part.targets
                names = {dotted(target) for target in targets}
                self.attributes |= names
                if "__slots__" in names and part.value is not None:
                    values = ast.walk(part.value)
                    self.attributes |= {str(value.value) for value in values if isinstance(value, ast.Constant)}


def overridden(trees: list[ast.Module]) -> set[tuple[str, str]]:
    """Class and name of each property over an attribute, or attribute over a property."""
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    classes = {node.name: Attributes(node) for node in nodes}
    found = set()
    for name, one in classes.items():
        for base in (classes[base] for base in one.bases if base in classes):
            both = (one.properties & base.attributes) | (one.attributes & base.properties)
            found |= {(name, attribute) for attribute in both}
    return found


def test_compiled_modules_mean_the_same() -> None:
    listed = [module for module in modules() if module.path in COMPILED]
    found = [f"{module.path}:{line}: {what}" for module in listed for line, what in found_in(module)]
    assert not found, "\n".join(found)


def test_properties_and_attributes_do_not_override_each_other() -> None:
    assert not overridden([module.tree for module in modules() if module.path in COMPILED])


def test_no_interpreted_class_extends_a_compiled_one() -> None:
    """Rule 8; NamedTuples, protocols and enumerations stay ordinary classes."""
    trees = {module.path: module.tree for module in modules() if module.path.startswith(LAYERS)}
    ordinary = {"Enum", "Exception", "IntEnum", "KafkaError", "NamedTuple", "Protocol", "StorageError"}
    native: set[str] = set()
    found = []
    for path in sorted(COMPILED):
        for node in trees[path].body:
            if isinstance(node, ast.ClassDef) and not ordinary & set(Attributes(node).bases):
                native.add(f"{path.removesuffix('.py').replace('/', '.')}.{node.name}")
    for path in trees.keys() - COMPILED:
        imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(trees[path])
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in trees[path].body:
            if isinstance(node, ast.ClassDef):
                found += [f"{path}: {node.name}" for base in Attributes(node).bases if imported.get(base) in native]
    assert not found, found


def test_the_list_is_exact() -> None:
    paths = {module.path for module in modules()}
    assert paths >= COMPILED, COMPILED - paths
    assert len(HOOK["modules"]) == len(COMPILED)
    pinned = re.search(r"^mypy==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[0] in HOOK["dependencies"]


VIOLATIONS = {
    "def f():\n    class A: ...": 1,
    "@runtime_checkable\nclass A(Protocol): ...": 1,
    "class A(NamedTuple):\n    a: memoryview\n    b: 'memoryview'\n    c: int": 1,
    "class A(ABC): ...": 1,
    "@dataclass(slots=True)\nclass A:\n    a: object": 1,
    "for _ in range(n):\n    n = 2": 1,
    "for _ in range(self.n + 1):\n    self.n += 2": 1,
    "for i in range(n):\n    m = n + i": 0,
    "a = (b for b in c)": 1,
    "a = dict.fromkeys(b for b in c)": 1,
    "a = any(b for b in c), next((b for b in c), None), x.join(b for b in c)": 0,
    "def f():\n    def g(): ...\n    return lambda: g()": 1,
    "def f():\n    def g(): ...\n    return g, lambda: 1": 0,
    "a = copy(b)": 1,
    "a = b.__dict__": 1,
}


@pytest.mark.parametrize(("text", "count"), VIOLATIONS.items())
def test_each_violation_is_found(text: str, count: int) -> None:
    assert len(list(found_in(Module("x.py", text, ast.parse(text))))) == count


def test_a_property_over_an_attribute_is_found() -> None:
    base = "class A:\n    __slots__ = ('b',)\n    a: int = 0\n    @property\n    def c(self): ...\n"
    derived = "class B(A):\n    c = 1\n    @property\n    def a(self): ...\n    @property\n    def b(self): ...\n"
    assert overridden([ast.parse(base + derived)]) == {("B", "a"), ("B", "b"), ("B", "c")}
