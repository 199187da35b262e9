"""What docs/architecture.md says exists, links of all pages resolve, and the tree keeps its shape."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from kbroker.simulation.scenarios.cluster_faults import CLUSTER, COORDINATION
from kbroker.simulation.scenarios.faults import CLOCK, DISK, NETWORK, NODE, POWER, ROT
from kbroker.simulation.scenarios.scenarios import SCENARIOS
from tests.unit.test_imports import ROOT, imported_files, sources

PAGE = ROOT / "docs" / "architecture.md"
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/development/*.md"), *ROOT.glob("examples/*.md"))

# Steps and files of each walk.
WALK_LIMITS = {
    "Start": (11, 9),
    "Produce": (11, 8),
    "Delayed record": (10, 7),
    "Fetch": (14, 9),
    "JoinGroup": (11, 11),
    "EndTxn": (26, 14),
}

MAX_NAMES = 16
# Folders with one name for each page, picture, package, command, API, message, transcript, helper or kind of test.
LONG_FOLDERS = {
    "docs",
    "docs/images",
    "kbroker",
    "kbroker/api",
    "kbroker/cli",
    "kbroker/console/templates",
    "protocol/messages",
    "tests/compat/wire/stories",
    "tests/unit",
    "tests/unit/api",
    "tests/unit/cli",
    "tests/unit/support",
    "tests/unit/simulation/transcripts",
    "tests/compat",
    "tests/compat/cluster",
    "tests/compat/wire",
}


@cache
def trees() -> Mapping[str, ast.Module]:
    return sources(ROOT)


@cache
def page() -> str:
    return PAGE.read_text()


def section(title: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", page(), re.MULTILINE)
    assert level, title
    text = page()[level.end() :]
    end = re.search(rf"^#{{1,{len(level[1])}}} ", text, re.MULTILINE)
    return text[: end.start()] if end else text


def definitions(tree: ast.Module) -> set[str]:
    """Return the functions, classes and methods (`Class.method`) at the top of a module."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    names.add(f"{node.name}.{member.name}")
    return names


def test_paths_exist() -> None:
    paths = set(re.findall(r"`((?:kbroker|protocol|tests|docs|examples|scripts)/[\w./]*)`", page()))
    assert len(paths) > 60
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_functions_exist() -> None:
    named = re.findall(r"`((?:kbroker|protocol)/[\w./]+\.py):\s([\w.]+)`", page())
    assert len(named) > 60
    missing = [(path, name) for path, name in named if path not in trees() or name not in definitions(trees()[path])]
    assert missing == []


def test_methods_exist() -> None:
    """`Class.method` without a file: some class of that name has the method."""
    everything = {name for tree in trees().values() for name in definitions(tree)}
    named = re.findall(r"`([A-Z]\w+\.[a-z_]\w*)`", page())
    assert sorted(name for name in named if name not in everything) == []


def test_every_package_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", section("Packages"), re.MULTILINE)
    packages = {path.rpartition("/")[0] for path in trees() if path.endswith("/__init__.py")}
    assert len(rows) == len(set(rows))
    assert set(rows) == packages - {"kbroker"}


@pytest.mark.parametrize("name", WALK_LIMITS)
def test_walks_are_short(name: str) -> None:
    most_steps, most_files = WALK_LIMITS[name]
    text = section(name).partition("If there is less than")[0]
    steps = re.findall(r"^(\d+)\. `([\w./]+)", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 5 < len(steps) <= most_steps
    assert len({file for _, file in steps}) <= most_files


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_paths_and_modules_of_pages_exist(path: Path) -> None:
    text = path.read_text()
    paths = re.findall(r"(?<![\w./-])((?:kbroker|protocol|tests|docs|examples|scripts|docker)/[\w./-]*\w)", text)
    modules = re.findall(r"python -m ((?:kbroker|tests)[\w.]*)", text)
    files = [*paths, *(f"{module.replace('.', '/')}" for module in modules)]
    # Caches and placeholders of instructions.
    files = [file for file in files if "kNN_name" not in file and "node_modules" not in file]
    assert [file for file in files if not (ROOT / file).exists() and not (ROOT / f"{file}.py").exists()] == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(path: Path) -> None:
    assert list(broken_links(path)) == []


def test_folders_have_few_names() -> None:
    names = defaultdict(set)
    for top in ("kbroker", "protocol", "tests", "docs", "scripts", "examples"):
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith((".", "__")):
                for parent in path.relative_to(ROOT).parents:
                    child = path.relative_to(ROOT / parent).parts[0]
                    names[parent.as_posix()].add(child)
    long = {folder for folder, children in names.items() if len(children) > MAX_NAMES and folder != "."}
    assert sorted(long - LONG_FOLDERS) == []
    assert sorted(folder for folder in LONG_FOLDERS if folder not in names) == []


def test_imports_have_no_cycles() -> None:
    graph = {file: imported_files(tree, trees()) - {file} for file, tree in trees().items()}
    assert cycles(graph) == []


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the files that are part of an import cycle, or between two cycles.

    Files that import no remaining file, and files that no remaining file imports, are removed repeatedly.
    """
    left = {file: set(targets) for file, targets in graph.items()}
    while True:
        imported = {target for targets in left.values() for target in targets}
        ends = {file for file, targets in left.items() if not targets or file not in imported}
        if not ends:
            return [sorted(left)] if left else []
        left = {file: targets - ends for file, targets in left.items() if file not in ends}


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]


def test_public_classes_have_their_own_names() -> None:
    files = defaultdict(list)
    for file, tree in trees().items():
        if not file.startswith("protocol/messages/"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files[node.name].append(file)
    shared = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert shared == {}


def test_scenarios_and_faults_of_the_simulation_are_documented() -> None:
    rows = set(
        re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "development" / "simulation.md").read_text(), re.MULTILINE)
    )
    faults = [fault for kind in (NODE, NETWORK, DISK, POWER, ROT, CLOCK, COORDINATION, CLUSTER) for fault in kind]
    assert sorted({*SCENARIOS, *faults} - rows) == []
