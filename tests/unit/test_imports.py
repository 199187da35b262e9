"""Who may import whom: imports point down only, and below the edge nobody reaches for the machine.

The order of the rooms is in README. An import under TYPE_CHECKING binds one room to another as any other does, so
it must point down too; of the machine it may name types.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kbroker

ROOT = Path(kbroker.__file__).parent.parent

# From the bottom up. A room may import itself and what stands before it.
ORDER = (
    "protocol",
    "model",
    "events",
    "metrics",
    "config",
    "state",
    "storage",
    "cluster",
    "replica",
    "coordinator",
    "api",
    "net",
    "exporter",
    "processes",
    "broker",
    "simulation",
)
# world.py names what is passed in, the disk of the storage room included; every room may import it.
SHARED = {"world"}

# Outside of the order: programs that reach brokers over the network, as clients do.
CLIENTS = {
    "cli": {"cli", "pipeline", "config", "protocol"},
    "pipeline": {"pipeline", "config", "protocol"},
    "__main__": {"cli"},
}
# `kbroker start` is the one command that is a broker, and `kbroker log` and `doctor` look at a broker's files.
CLIENT_EXCEPTIONS = {
    "kbroker/cli/start.py": {"broker", "events"},
    "kbroker/cli/log_dump.py": {"storage"},
    "kbroker/cli/log_files.py": {"storage", "cluster"},
    "kbroker/cli/doctor.py": {"storage"},
    "kbroker/cli/doctor_checks.py": {"storage", "model"},
    "kbroker/cli/doctor_host.py": {"storage"},
    "kbroker/cli/log_app.py": {"storage"},
    "kbroker/cli/log_internal.py": {"storage"},
    "kbroker/cli/log_segments.py": {"storage"},
    "kbroker/cli/log_verify.py": {"storage", "cluster", "model"},
}

MACHINE = {
    "asyncio",
    "concurrent",
    "datetime",
    "fcntl",
    "kazoo",
    "mmap",
    "multiprocessing",
    "os",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "uvloop",
}
# The edge: where the machine is reached. Everything else receives it as a parameter.
EDGE_ROOMS = {"broker", "exporter", "net", "processes", "simulation", *CLIENTS}
EDGE_FILES = {"kbroker/storage/backend.py", "kbroker/cluster/zookeeper.py"}
# The types of what is passed in. They may be named anywhere, and made at the edge only.
PASSED_IN = {"random": {"Random"}, "asyncio": {"AbstractEventLoop"}}
# What is in such a module and asks nothing of the machine.
# A mapping of a file would need its descriptor, which nobody below the edge can have; without one it is memory.
PURE = {"uuid": {"UUID"}, "mmap": {"mmap"}}


class Import(NamedTuple):
    module: str
    names: frozenset[str]
    for_types: bool


def imports(tree: ast.Module) -> Iterator[Import]:
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, frozenset(), id(node) in typing_only)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield Import(module, frozenset(alias.name for alias in node.names), id(node) in typing_only)


def room_of(module: str) -> str | None:
    """The room that a module of ours is in; "" for the package kbroker itself, None for what is not ours."""
    parts = module.split(".")
    if parts[0] == "protocol":
        return "protocol"
    return None if parts[0] != "kbroker" else parts[1] if len(parts) > 1 else ""


def faults(root: Path) -> list[str]:
    """One line for each import that is not allowed, by file."""
    found = []
    for path in sorted((*root.glob("kbroker/**/*.py"), *root.glob("protocol/**/*.py"))):
        file = path.relative_to(root).as_posix()
        room = room_of(file.removesuffix(".py").replace("/", ".")) or ""
        tree = ast.parse(path.read_text())
        found += [f"{file}: {fault}" for fault in _faults_of_file(file, room, tree)]
    return found


def _faults_of_file(file: str, room: str, tree: ast.Module) -> Iterator[str]:
    if room not in (*ORDER, *SHARED, *CLIENTS, "__init__"):
        yield f"the room {room} has no place in the order"
        return
    for one in imports(tree):
        yield from _wrong_direction(file, room, one)
        if room not in EDGE_ROOMS and file not in EDGE_FILES:
            yield from _machine(one)
    if room not in EDGE_ROOMS and file not in EDGE_FILES:
        made = {name for names in PASSED_IN.values() for name in names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in made:
                yield f"makes a {node.func.id}"


def _wrong_direction(file: str, room: str, one: Import) -> Iterator[str]:
    if one.module.startswith("."):
        yield f"imports relatively from {one.module}"
        return
    target = room_of(one.module)
    targets = {name for name in one.names if name != "__version__"} if target == "" else {target}
    for name in sorted(target for target in targets if target is not None):
        if name in SHARED or name == room or room in SHARED:
            continue
        if room in CLIENTS:
            allowed = name in CLIENTS[room] | CLIENT_EXCEPTIONS.get(file, set())
        else:
            allowed = name in ORDER and room in ORDER and ORDER.index(name) < ORDER.index(room)
        if not allowed:
            yield f"imports {name}, which is not below {room}"


def _machine(one: Import) -> Iterator[str]:
    top = one.module.partition(".")[0]
    if top not in MACHINE or one.for_types:
        return
    harmless = PASSED_IN.get(one.module, set()) | PURE.get(one.module, set())
    if not one.names or not one.names <= harmless:
        yield f"imports {one.module} below the edge"


def test_imports_point_down_and_the_machine_is_passed_in():
    assert faults(ROOT) == []


def test_the_rule_is_about_the_whole_tree():
    assert len(list(ROOT.glob("kbroker/**/*.py"))) > 50
    assert (ROOT / "kbroker/storage/backend.py").exists()


def test_a_bad_tree_is_found_out(tmp_path: Path):
    files = {
        "kbroker/__init__.py": "",
        "kbroker/world.py": "from kbroker.storage.backend import Disk",
        "kbroker/model.py": "import protocol.errors",
        "kbroker/state/good.py": (
            "from random import Random\nfrom uuid import UUID\nfrom kbroker.world import World\nimport kbroker.model"
        ),
        "kbroker/state/up.py": "from kbroker.storage.log import Log",
        "kbroker/state/up_for_types.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kbroker.api import services\n    import os"
        ),
        "kbroker/state/clock.py": "import time",
        "kbroker/state/loop.py": "def f():\n    from asyncio import sleep",
        "kbroker/state/dice.py": "from random import Random, random\nr = Random()",
        "kbroker/cluster/zookeeper.py": "import kazoo.client, threading",
        "kbroker/cluster/embedded.py": "import os.path",
        "kbroker/cluster/follower.py": "from kbroker.replica import manager",
        "kbroker/replica/manager.py": "from . import partition\nfrom kbroker import broker",
        "kbroker/storage/backend.py": "import os",
        "kbroker/net/listener.py": "import asyncio\nimport kbroker.broker",
        "kbroker/broker.py": "import time, kbroker.net",
        "kbroker/cli/start.py": "import os\nfrom kbroker.broker import run",
        "kbroker/cli/topics.py": "from kbroker import __version__\nfrom kbroker.cluster import controller",
        "kbroker/cli/groups.py": "from kbroker.broker import run",
        "kbroker/attic/old.py": "",
        "protocol/wire.py": "import socket\nfrom kbroker.model import Buffer",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(faults(tmp_path)) == [
        "kbroker/attic/old.py: the room attic has no place in the order",
        "kbroker/cli/groups.py: imports broker, which is not below cli",
        "kbroker/cli/topics.py: imports cluster, which is not below cli",
        "kbroker/cluster/embedded.py: imports os.path below the edge",
        "kbroker/cluster/follower.py: imports replica, which is not below cluster",
        "kbroker/net/listener.py: imports broker, which is not below net",
        "kbroker/replica/manager.py: imports broker, which is not below replica",
        "kbroker/replica/manager.py: imports relatively from .",
        "kbroker/state/clock.py: imports time below the edge",
        "kbroker/state/dice.py: imports random below the edge",
        "kbroker/state/dice.py: makes a Random",
        "kbroker/state/loop.py: imports asyncio below the edge",
        "kbroker/state/up.py: imports storage, which is not below state",
        "kbroker/state/up_for_types.py: imports api, which is not below state",
        "protocol/wire.py: imports model, which is not below protocol",
        "protocol/wire.py: imports socket below the edge",
    ]
