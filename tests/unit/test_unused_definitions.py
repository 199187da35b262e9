"""Every function, class, method, attribute and constant of kbroker, protocol and scripts has a use in the code.

A definition is dead if only its own body and tests name it. In use are also what a foreign base class calls (asyncio,
kazoo), what a decorator registers (typer), the public names of kbroker.retry, and what the data of the configs and the
templates of the console name.
For `scripts` and the fakes of the simulation, the tests of the broker are users. Names of modules are resolved through
imports; methods and attributes are compared by name alone, so a dead one with a common name is not found. The fields of
protocol and kbroker.config are rows of Kafka's lists, and need no user.
"""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import kbroker
from protocol.apis import ALL_APIS

ROOT = Path(kbroker.__file__).parent.parent
CHECKED = ("kbroker", "protocol", "scripts")
# Fields of these are rows of a list of Kafka's.
ROWS = ("protocol/", "kbroker/config/")
# The fakes in the first directory, and programs in the second, have users in the tests of other directories.
# Tests are what kbroker.testing is for, so its own count, too.
TESTED_FROM_OUTSIDE = {
    "kbroker/simulation/": "tests/unit/simulation/",
    "kbroker/testing/": None,
    "scripts/": "tests/unit/benchmark/",
}
PUBLIC = ("kbroker/retry/__init__.py", "kbroker/testing/__init__.py")
DISPATCH = "kbroker/api/dispatch.py"
# Their expressions read attributes.
TEMPLATES = "kbroker/console/templates"
# The functions that it names are called.
CONFIGS_WITHOUT_EFFECT = "kbroker/config/definitions/no_effect.json"
# Definitions without a use, and why they stay.
ALLOWED = {
    "kbroker/broker.py: Broker._assigned": "tests end its roles, as the end of a session does",
    "kbroker/cli/start/control.py: ControlRequest.do_GET": "http.server calls it",
    "kbroker/cli/start/control.py: ControlRequest.do_POST": "http.server calls it",
    "kbroker/archive/catalogs/durable_io.py: DurableFileIO": "pyiceberg makes it by its name",
    "kbroker/runtime/process_runner.py: ChildService._connecting": "it keeps the task alive",
    "kbroker/retry/batch.py: PollBatch.succeeded": "programs read it",
    "kbroker/testing/pytest_plugin.py: pytest_addoption": "pytest calls it",
    "kbroker/telemetry/subscriptions.py: ClientAttributes.client_source_address": "patterns of subscriptions name it",
    "kbroker/telemetry/subscriptions.py: ClientAttributes.client_source_port": "patterns of subscriptions name it",
    "kbroker/simulation/invariants/broker.py: _PartitionState.last_stable": "getattr reads it by its name",
    "scripts/benchmark/cluster/moves.py: ForegroundLatency.end_to_end_p50": "a program writes it, with the others",
}
# (module, name) of a name of a module; (None, name) of a name that is read from an object.
Key = tuple[str | None, str]


class Definition(NamedTuple):
    """`owner`: the class of a method or an attribute, else None. Lines: those of its body, from 1."""

    file: str
    owner: str | None
    name: str
    first_line: int
    last_line: int
    is_field: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.owner + '.' if self.owner else ''}{self.name}"


class Names:
    """Which file names what, at which lines."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._imported = {module_of(file): dict(imported_names(tree)) for file, tree in trees.items()}
        self._uses: dict[Key, list[tuple[str, int]]] = defaultdict(list)
        for file, tree in trees.items():
            self._read(file, module_of(file), tree)
        for name in re.findall(r'"(\w+)"', (ROOT / CONFIGS_WITHOUT_EFFECT).read_text()):
            self._uses[None, name].append((CONFIGS_WITHOUT_EFFECT, 0))
        for template in (ROOT / TEMPLATES).iterdir():
            for expression in re.findall(r"{[{%](.*?)[%}]}", template.read_text()):
                for name in re.findall(r"\.(\w+)", expression):
                    self._uses[None, name].append((TEMPLATES, 0))
        for api in ALL_APIS.values():
            # In a file of several APIs, dispatch.py finds the function by the name of its API.
            self._uses[f"kbroker.api.{api.module}", api.key.name.lower()].append((DISPATCH, 0))

    def uses(self, definition: Definition) -> Iterator[str]:
        """Yield the file of each use outside the definition's own body."""
        module = None if definition.owner else module_of(definition.file)
        for key in {(module, definition.name), (None, definition.name)}:
            for file, line in self._uses[key]:
                if file != definition.file or not definition.first_line <= line <= definition.last_line:
                    yield file

    def _read(self, file: str, module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            for key in self._keys(module, node):
                self._uses[key].append((file, node.lineno))  # type: ignore[attr-defined]
        if file in PUBLIC:
            for _, name in imported_names(tree):
                self._uses[self._resolved(*name)].append((file, 0))

    def _keys(self, module: str, node: ast.AST) -> Iterator[Key]:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield self._resolved(module, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield self._attribute(module, node)
        elif isinstance(node, ast.Call):
            # getattr(event, "name"), and tables of functions that are imported when they are needed.
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield None, argument.value
        elif isinstance(node, ast.MatchClass):
            yield from ((None, name) for name in node.kwd_attrs)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for each in ast.walk(annotation) if isinstance(annotation, ast.expr) else ():
                # A quoted type, or a text of a Literal.
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    with suppress(SyntaxError):
                        for inner in ast.walk(ast.parse(each.value)):
                            yield from self._keys(module, inner)

    def _attribute(self, module: str, node: ast.Attribute) -> Key:
        if isinstance(node.value, ast.Name):
            source, name = self._imported.get(module, {}).get(node.value.id, (None, ""))
            if source is not None and f"{source}.{name}" in self._imported:
                return self._resolved(f"{source}.{name}", node.attr)
        return None, node.attr

    def _resolved(self, module: str, name: str) -> Key:
        """Follow imports to the module that defines the name."""
        source = self._imported.get(module, {}).get(name)
        if source is None or source == (module, name) or source[0] not in self._imported:
            return module, name
        return self._resolved(*source)


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_names(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each imported name, and the module and name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield alias.asname or alias.name, (node.module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                package, _, name = alias.name.rpartition(".")
                if alias.asname and package:
                    yield alias.asname, (package, name)


def definitions(file: str, tree: ast.Module) -> Iterator[Definition]:
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not _is_registered(node):
                yield _definition(file, None, node.name, node)
            case ast.ClassDef():
                yield _definition(file, None, node.name, node)
                yield from _members(file, node)
            case ast.Assign() | ast.AnnAssign():
                for name in _assigned(node):
                    yield _definition(file, None, name, node)


def _members(file: str, owner: ast.ClassDef) -> Iterator[Definition]:
    for node in owner.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not _is_registered(node):
                    yield _definition(file, owner.name, node.name, node)
                for each in ast.walk(node):
                    match each:
                        case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                            yield Definition(file, owner.name, each.attr, 0, 0)
            case ast.Assign() | ast.AnnAssign():
                for name in _assigned(node):
                    if name == "__slots__" and node.value is not None:
                        for each in ast.walk(node.value):
                            if isinstance(each, ast.Constant):
                                yield Definition(file, owner.name, each.value, 0, 0)
                    else:
                        yield Definition(file, owner.name, name, 0, 0, is_field=True)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those under `if` and `try`."""
    for node in body:
        yield node
        for block in ("body", "orelse"):
            if isinstance(node, ast.If | ast.Try):
                yield from _statements(getattr(node, block))


def _definition(file: str, owner: str | None, name: str, node: ast.stmt) -> Definition:
    return Definition(file, owner, name, node.lineno, node.end_lineno or node.lineno)


def _assigned(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for each in ast.walk(target):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                yield each.id


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator such as `@app.command()` or `@pytest.fixture` calls the function later."""
    return any(ast.unparse(each).startswith("pytest.fixture") for each in node.decorator_list) or any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in ("command", "callback")
        for each in node.decorator_list
    )


def unused(trees: Mapping[str, ast.Module]) -> list[Definition]:
    """Return the definitions of the checked packages without a use; `trees` has tests and examples too."""
    names = Names(trees)
    return [
        definition
        for file, tree in trees.items()
        if file.startswith(CHECKED)
        for definition in dict.fromkeys(definitions(file, tree))
        if not _needs_no_use(definition) and not any(_counts(user, file) for user in names.uses(definition))
    ]


def _needs_no_use(definition: Definition) -> bool:
    name = definition.name
    return name == "_" or name.startswith("__") or (definition.is_field and definition.file.startswith(ROWS))


def _counts(user: str, file: str) -> bool:
    if not user.startswith("tests/"):
        return True
    return any(
        file.startswith(path) and (own is None or not user.startswith(own)) for path, own in TESTED_FROM_OUTSIDE.items()
    )


def is_called_by_base(definition: Definition) -> bool:
    """Return whether a base class from outside the project has the method or attribute."""
    if definition.owner is None:
        return False
    owner = getattr(importlib.import_module(module_of(definition.file)), definition.owner)
    bases = [base for base in owner.__mro__ if not base.__module__.startswith(CHECKED)]
    return any(hasattr(base, definition.name) for base in bases)


def trees_of(root: Path) -> dict[str, ast.Module]:
    paths = [path for folder in (*CHECKED, "tests", "examples") for path in sorted(root.glob(f"{folder}/**/*.py"))]
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in paths}


def test_every_definition_has_a_use():
    found = {str(each) for each in unused(trees_of(ROOT)) if not is_called_by_base(each)}
    assert found == set(ALLOWED)


def test_a_definition_without_a_use_is_found():
    texts = {
        "kbroker/a.py": "from kbroker.b import used\nLEFT = used()\ndef launch(): launch()\nclass Start: pass\n",
        "kbroker/b.py": "def used(): pass\ndef tested(): pass\nclass Used:\n    def __init__(self): self.set = 1\n",
        "kbroker/c.py": "from kbroker import b\ndef main(): b.Used()\nif __name__ == '__main__': main()",
        "tests/test_b.py": "from kbroker.b import tested\ntested()\n",
    }
    found = unused({file: ast.parse(text) for file, text in texts.items()})
    assert [(each.file, each.name) for each in found] == [
        ("kbroker/a.py", "LEFT"),
        ("kbroker/a.py", "launch"),
        ("kbroker/a.py", "Start"),
        ("kbroker/b.py", "tested"),
        ("kbroker/b.py", "set"),
    ]
