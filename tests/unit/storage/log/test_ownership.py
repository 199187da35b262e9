"""Only Log changes a Log, and only LogSegment a LogSegment. Other modules compute values, or call a method that says
what happens."""

import ast
from collections.abc import Iterator
from pathlib import Path

import kbroker

ROOT = Path(kbroker.__file__).parent.parent
LOG, SEGMENT = "log", "segment"
# Log and its base class; LogSegment.
OWNERS = {
    LOG: {"kbroker/storage/log/log.py", "kbroker/storage/log/log_state.py"},
    SEGMENT: {"kbroker/storage/log/segment.py"},
}
TYPES = {"Log": LOG, "LogSegment": SEGMENT}
# Variables and attributes that hold a log or a segment wherever they occur.
USUAL_NAMES = {"log": LOG, "segment": SEGMENT}
USUAL_ATTRIBUTES = {"log": LOG, "active": SEGMENT}
# Methods that change a container, or one of the objects that a log consists of.
MUTATING = {
    "add", "append", "assign", "clear", "difference_update", "discard", "end_transaction", "extend",
    "insert", "on_high_watermark_updated", "pop", "popleft", "prepend_batches", "remove", "restore", "setdefault",
    "truncate_from_end", "truncate_from_start", "update",
}  # fmt: skip

BAD = """
def change(log: "Log", other: LogSegment, partition, fine):
    log.segments = []  # violation
    log.active.size += 1  # violation
    del log.segments[0]  # violation
    log.segments.append(other)  # violation
    other.file, fine.file = None, None  # violation
    partition.log.health.full = True  # violation
    partition.log.epochs.assign(1, 2)  # violation
    segments, same = log.segments, partition.log
    segments.pop()  # violation
    same.producers.transactions.restore([])  # violation
    for segment in log.segments:
        segment.indexes.rebuilt = True  # violation
"""
GOOD = """
def use(log: "Log", partition, fine):
    log.append(1)
    partition.log.mark_cleaned(1)
    fine.segments = log.segments
    fine.segments.append(2)
    found = list(log.segments)
    found.append(log.producers.check(1))
    for segment in log.segments:
        segment.close(1)
"""


def violations(file: str, tree: ast.Module) -> list[str]:
    lines = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            known = {**USUAL_NAMES, **dict(_annotated(function))}
            parts = _aliases(function, known)
            for node in ast.walk(function):
                for kind in _changes(node, known, parts):
                    if file not in OWNERS[kind]:
                        lines.append(f"{file}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    return sorted(set(lines))


def _annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        annotation = ast.unparse(argument.annotation).strip("'\"") if argument.annotation is not None else ""
        if annotation in TYPES:
            yield argument.arg, TYPES[annotation]


def _aliases(function: ast.AST, known: dict[str, str]) -> set[str]:
    """Add local names of logs and segments to `known`; return local names of parts of a log."""
    parts = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                kind, depth = _root(value, known, set())
                if isinstance(name, ast.Name) and kind is not None and not depth:
                    known[name.id] = kind
                elif isinstance(name, ast.Name) and kind == LOG:
                    parts.add(name.id)
    return parts


def _root(node: ast.expr, known: dict[str, str], parts: set[str]) -> tuple[str | None, int]:
    """Return the kind of object that an expression is part of, None if unknown, and how many levels below it."""
    depth = 0
    while True:
        if isinstance(node, ast.Attribute) and node.attr in USUAL_ATTRIBUTES:
            return USUAL_ATTRIBUTES[node.attr], depth
        if isinstance(node, ast.Name):
            return (LOG, depth + 1) if node.id in parts else (known.get(node.id), depth)
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return None, depth
        node, depth = node.value, depth + 1


def _changes(node: ast.AST, known: dict[str, str], parts: set[str]) -> Iterator[str]:
    """Yield the kind of each object of which a statement assigns, deletes or changes a part."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        for element in target.elts if isinstance(target, ast.Tuple) else [target]:
            kind, depth = _root(element, known, parts)
            if kind is not None and depth and not isinstance(element, ast.Name):
                yield kind
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
        kind, depth = _root(node.func.value, known, parts)
        if kind == LOG and depth:
            yield kind


def test_only_the_owner_of_a_log_or_segment_changes_it() -> None:
    lines = []
    for path in sorted(ROOT.glob("kbroker/**/*.py")):
        lines += violations(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
    assert lines == []


def test_every_violation_is_found_and_nothing_else() -> None:
    expected = {number for number, line in enumerate(BAD.splitlines(), 1) if line.endswith("# violation")}
    assert {int(line.split(":")[1]) for line in violations("x.py", ast.parse(BAD))} == expected
    assert violations("x.py", ast.parse(GOOD)) == []


def test_owners_exist() -> None:
    for files in OWNERS.values():
        for file in files:
            assert (ROOT / file).exists(), file
