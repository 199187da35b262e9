"""Which package may import which: only lower layers, and only a few modules import the clock, disk, network, processes.

docs/architecture.md describes the packages. An import under TYPE_CHECKING counts like any other, but a module may name
the types of the limited modules there.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import kbroker

ROOT = Path(kbroker.__file__).parent.parent

# From the bottom up. A package may import itself and the packages before it.
LAYERS = (
    "protocol",
    "common",
    "units",
    "authorization",
    "client",
    "runtime",
    "config",
    "quotas",
    "storage",
    "coordination",
    "metadata",
    "interbroker",
    "replica",
    "queues",
    "coordinator",
    "share",
    "telemetry",
    "api",
    "server",
    "exporter",
    "broker",
    "simulation",
    "testing",
)

# Outside the layers: programs that reach brokers over the network, as any client does.
CLIENTS = {
    "cli": {"cli", "archive", "pipeline", "retry", "client", "common", "units", "config", "protocol"},
    # Its pages and the commands are two ways to the same things.
    "console": {"console", "cli", "client", "common", "units", "config", "protocol"},
    "retry": {"retry", "config"},
    "archive": {"archive", "client", "common", "config", "protocol"},
    "pipeline": {"pipeline", "archive", "client", "common", "config", "protocol"},
    "__main__": {"cli"},
}
# `kbroker start` is the one command that runs a broker; `kbroker log` and `kbroker doctor` read a broker's files, and
# `kbroker tools frame` shows record batches in the same way. Plans of moves are made by pure functions of
# kbroker.metadata, which the brokers can use too.
CLIENT_EXCEPTIONS = {
    "kbroker/cli/acls.py": {"authorization"},
    "kbroker/cli/backup.py": {"runtime", "storage"},
    "kbroker/cli/cluster/brokers.py": {"metadata"},
    "kbroker/cli/cluster/cluster_state.py": {"metadata"},
    "kbroker/cli/cluster/plan_report.py": {"metadata"},
    "kbroker/cli/cluster/plan_requests.py": {"metadata"},
    "kbroker/cli/cluster/run_plan.py": {"metadata"},
    "kbroker/cli/console.py": {"console"},
    "kbroker/cli/doctor/cluster_checks.py": {"metadata"},
    "kbroker/cli/doctor/doctor.py": {"runtime"},
    "kbroker/cli/doctor/host.py": {"coordination", "metadata", "runtime", "storage"},
    "kbroker/cli/doctor/storage_checks.py": {"runtime", "storage"},
    "kbroker/cli/log/app.py": {"runtime"},
    "kbroker/cli/log/dump.py": {"coordination", "runtime", "storage"},
    "kbroker/cli/log/items.py": {"runtime", "storage"},
    "kbroker/cli/log/verify.py": {"coordination", "runtime", "storage"},
    "kbroker/cli/start/broker_process.py": {"runtime", "storage"},
    "kbroker/cli/start/control.py": {"runtime"},
    "kbroker/cli/start/control_calls.py": {"testing"},
    "kbroker/cli/start/dev.py": {"runtime", "testing"},
    "kbroker/cli/start/directories.py": {"storage"},
    "kbroker/cli/start/local_cluster.py": {"coordination", "runtime", "storage"},
    "kbroker/cli/start/run.py": {"broker", "runtime"},
    "kbroker/cli/start/start.py": {"runtime"},
    "kbroker/cli/tools/frame.py": {"storage"},
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
# Only these (the edge) import those modules. All others receive the clock, disk and network as parameters.
EDGE_PACKAGES = {"broker", "client", "exporter", "interbroker", "server", "simulation", "testing", *CLIENTS}
EDGE_FILES = {
    "kbroker/coordination/zookeeper/client.py",
    "kbroker/coordination/zookeeper/open_session.py",
    "kbroker/coordination/zookeeper/session.py",
    "kbroker/coordination/zookeeper_server/server.py",
    "kbroker/coordination/zookeeper_server/sessions.py",
    "kbroker/runtime/child_process.py",
    "kbroker/runtime/page_cache.py",
    "kbroker/runtime/process_runner.py",
    "kbroker/runtime/real_disk.py",
    "kbroker/runtime/system.py",
    "kbroker/runtime/system_clock.py",
}
# Types that may be named anywhere, and instantiated at the edge only.
PASSED_IN = {"random": {"Random"}, "asyncio": {"AbstractEventLoop"}}
# Names of those modules that are allowed everywhere: an anonymous mmap is plain memory.
HARMLESS = {"uuid": {"UUID"}, "mmap": {"mmap"}}
# These act on the running event loop, which is passed in too: any module that is not pure may use them.
RUNNING_LOOP = {"asyncio": {"Future", "Lock", "sleep"}}

# Decisions over plain state: no event loop, disk or clock, not even as a parameter.
# A directory stands for all files in it.
PURE = (
    "kbroker/authorization/",
    "kbroker/client/requests.py",
    "kbroker/config/",
    "kbroker/coordinator/group/assignors/",
    "kbroker/coordinator/group/classic/",
    "kbroker/coordinator/group/consumer/",
    "kbroker/coordinator/group/group.py",
    "kbroker/coordinator/group/modern/",
    "kbroker/coordinator/group/offset_metadata_manager.py",
    "kbroker/coordinator/group/records.py",
    "kbroker/coordinator/group/share/",
    "kbroker/coordinator/group/streams/",
    "kbroker/coordinator/group/topics.py",
    "kbroker/coordinator/java_collections.py",
    "kbroker/coordinator/java_hash.py",
    "kbroker/coordinator/re2_pattern.py",
    "kbroker/coordinator/runtime/operation.py",
    "kbroker/coordinator/share/share_partition_state.py",
    "kbroker/coordinator/share/records.py",
    "kbroker/coordinator/share/state_batches.py",
    "kbroker/coordinator/transaction/transaction_metadata.py",
    "kbroker/coordinator/transaction/transitions.py",
    "kbroker/coordinator/xxh3.py",
    "kbroker/interbroker/handshake.py",
    "kbroker/interbroker/isolation.py",
    "kbroker/metadata/features.py",
    "kbroker/metadata/image.py",
    "kbroker/metadata/reassignments/plan_decisions.py",
    "kbroker/metadata/reassignments/healing_states.py",
    "kbroker/metadata/reassignments/placement/",
    "kbroker/metadata/reassignments/stored_plan.py",
    "kbroker/metadata/recovery/log_recovery.py",
    "kbroker/metadata/replication/",
    "kbroker/metadata/topics/",
    "kbroker/metadata/store/change_log.py",
    "kbroker/metadata/store/partition_chunks.py",
    "kbroker/coordination/data_tree.py",
    "kbroker/coordination/zookeeper_server/messages.py",
    "kbroker/metadata/store/znodes.py",
    "kbroker/pipeline/aggregate/definition.py",
    "kbroker/pipeline/errors.py",
    "kbroker/pipeline/ingest/batch_plan.py",
    "kbroker/pipeline/replay/routing.py",
    "kbroker/pipeline/spark/__init__.py",
    "kbroker/pipeline/spark/session_conf.py",
    "kbroker/archive/errors.py",
    "kbroker/archive/offset_ranges.py",
    "kbroker/archive/topic_state.py",
    "kbroker/archive/typed_json.py",
    "kbroker/queues/closing/closing_partitions.py",
    "kbroker/queues/closing/forwarded_batches.py",
    "kbroker/queues/dedup/key_table.py",
    "kbroker/queues/delay/delay_batches.py",
    "kbroker/queues/delay/delay_state.py",
    "kbroker/queues/delay/pending_records.py",
    "kbroker/queues/expiry.py",
    "kbroker/queues/record_headers.py",
    "kbroker/queues/record_selection.py",
    "kbroker/queues/topic_filters.py",
    "kbroker/queues/views.py",
    "kbroker/quotas/",
    "kbroker/replica/fetch/read_filter.py",
    "kbroker/replica/history/frames.py",
    "kbroker/replica/history/history_cache.py",
    "kbroker/replica/fetcher/replica_fetch_session.py",
    "kbroker/replica/partition_state.py",
    "kbroker/replica/produce/record_rules.py",
    "kbroker/retry/batch.py",
    "kbroker/retry/policy.py",
    "kbroker/retry/records.py",
    "kbroker/runtime/deadlines.py",
    "kbroker/share/delivery.py",
    "kbroker/share/in_flight.py",
    "kbroker/share/partition.py",
    "kbroker/share/session.py",
    "kbroker/storage/cleaner/batch_filter.py",
    "kbroker/storage/log/leader_epoch_cache.py",
    "kbroker/storage/file_names.py",
    "kbroker/storage/producers/",
    "kbroker/units.py",
    "protocol/",
)
# Files of those directories that carry out the decisions beside them.
NOT_PURE = (
    "kbroker/coordinator/group/classic/classic_groups.py",
    "kbroker/coordinator/group/consumer/classic_members.py",
    "kbroker/coordinator/group/consumer/consumer_groups.py",
    "kbroker/coordinator/group/consumer/regex_resolver.py",
    "kbroker/coordinator/group/share/share_group_states.py",
    "kbroker/coordinator/group/share/share_groups.py",
    "kbroker/coordinator/group/streams/streams_groups.py",
    "kbroker/coordinator/group/modern/modern_groups.py",
    "kbroker/metadata/replication/isr_change_queue.py",
    "kbroker/metadata/replication/replication_control_manager.py",
    "kbroker/metadata/topics/topic_control_manager.py",
)
# Pure modules import one another, these, and the standard library without the machine. A loop that pauses (turns.py)
# has the same result.
PURE_MAY_IMPORT = (
    "kbroker/common.py",
    "kbroker/coordination/interface.py",
    "kbroker/runtime/event_log.py",
    "kbroker/runtime/turns.py",
)


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


def package_of(module: str) -> str | None:
    """Return the layer of a module: "" for the package kbroker itself, None for a module of another project."""
    parts = module.split(".")
    if parts[0] == "protocol":
        return "protocol"
    return None if parts[0] != "kbroker" else parts[1] if len(parts) > 1 else ""


def sources(root: Path) -> dict[str, ast.Module]:
    paths = sorted((*root.glob("kbroker/**/*.py"), *root.glob("protocol/**/*.py")))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in paths}


def faults(root: Path) -> list[str]:
    """Return one line for each import that is not allowed, by file."""
    texts = []
    trees = sources(root)
    for file, tree in trees.items():
        package = package_of(file.removesuffix(".py").replace("/", ".")) or ""
        texts += [f"{file}: {fault}" for fault in _faults_of_file(file, package, tree)]
        if is_pure(file):
            texts += [f"{file}: {fault}" for fault in _impure(file, tree, trees)]
    return texts


def _faults_of_file(file: str, package: str, tree: ast.Module) -> Iterator[str]:
    if package not in (*LAYERS, *CLIENTS, "__init__"):
        yield f"the package {package} has no layer"
        return
    at_edge = (package in EDGE_PACKAGES or file in EDGE_FILES) and not is_pure(file)
    for statement in imports(tree):
        yield from _wrong_direction(file, package, statement)
        if not at_edge:
            yield from _machine(statement)
    if not at_edge:
        instantiated = {name for names in PASSED_IN.values() for name in names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in instantiated:
                yield f"instantiates {node.func.id}"


def _wrong_direction(file: str, package: str, statement: Import) -> Iterator[str]:
    if statement.module.startswith("."):
        yield f"imports relatively from {statement.module}"
        return
    target = package_of(statement.module)
    targets = {name for name in statement.names if name != "__version__"} if target == "" else {target}
    for name in sorted(target for target in targets if target is not None):
        if name == package:
            continue
        if package in CLIENTS:
            allowed = name in CLIENTS[package] | CLIENT_EXCEPTIONS.get(file, set())
        else:
            allowed = name in LAYERS and package in LAYERS and LAYERS.index(name) < LAYERS.index(package)
        if not allowed:
            yield f"imports {name}, which is not below {package}"


def _machine(statement: Import) -> Iterator[str]:
    top = statement.module.partition(".")[0]
    if top not in MACHINE or statement.for_types:
        return
    harmless = (
        PASSED_IN.get(statement.module, set())
        | HARMLESS.get(statement.module, set())
        | RUNNING_LOOP.get(statement.module, set())
    )
    if not statement.names or not statement.names <= harmless:
        yield f"imports {statement.module} below the edge"


def is_pure(file: str) -> bool:
    is_listed = any(file == entry or (entry.endswith("/") and file.startswith(entry)) for entry in PURE)
    return is_listed and file not in NOT_PURE


def _impure(file: str, tree: ast.Module, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for target in sorted(imported_files(tree, trees)):
        if not is_pure(target) and target not in PURE_MAY_IMPORT and not target.endswith("__init__.py"):
            yield f"is pure and imports {target}, which is not"
    for statement in imports(tree):
        if statement.names & RUNNING_LOOP.get(statement.module, set()):
            yield f"is pure and imports {statement.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield "is pure and has a coroutine"
            return


def imported_files(tree: ast.Module, trees: Mapping[str, ast.Module]) -> set[str]:
    """Return the files of this project that a module imports, including imports for type checking only."""
    files = set()
    for statement in imports(tree):
        base = statement.module.replace(".", "/")
        for name in statement.names or {""}:
            for file in (f"{base}/{name}.py", f"{base}/{name}/__init__.py", f"{base}.py", f"{base}/__init__.py"):
                if file in trees:
                    files.add(file)
                    break
    return files


def test_imports_point_down_and_the_machine_is_passed_in():
    assert faults(ROOT) == []


def test_the_rules_name_what_exists():
    assert len(sources(ROOT)) > 50
    for entry in (*EDGE_FILES, *PURE, *NOT_PURE, *PURE_MAY_IMPORT, *CLIENT_EXCEPTIONS):
        assert (ROOT / entry).exists(), entry


def test_violations_of_the_rules_are_found(tmp_path: Path):
    files = {
        "kbroker/__init__.py": "",
        "kbroker/common.py": "import protocol.errors",
        "kbroker/runtime/environment.py": "from kbroker.storage.file_names import segment_file",
        "kbroker/runtime/real_disk.py": "import os",
        "kbroker/config/good.py": "from random import Random\nfrom uuid import UUID\nimport kbroker.common",
        "kbroker/config/up.py": "from kbroker.storage.log.log import Log",
        "kbroker/config/up_for_types.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kbroker.api import context\n    import os"
        ),
        "kbroker/config/clock.py": "import time",
        "kbroker/config/loop.py": "async def f():\n    from asyncio import new_event_loop",
        "kbroker/config/sleeping.py": "from asyncio import sleep",
        "kbroker/config/dice.py": "from random import Random, random\nr = Random()",
        "kbroker/storage/file_names.py": "",
        "kbroker/storage/log/log.py": "import kbroker.common",
        "kbroker/storage/producers/impure.py": "from kbroker.storage.log.log import Log",
        "kbroker/coordination/zookeeper.py": "import kazoo.client, threading",
        "kbroker/metadata/metadata_loader.py": "from kbroker.replica import partition",
        "kbroker/replica/replica_manager.py": "from . import partition\nfrom kbroker import broker",
        "kbroker/replica/sleeping.py": "from asyncio import sleep",
        "kbroker/server/socket_server.py": "import asyncio\nimport kbroker.broker",
        "kbroker/broker.py": "import time, kbroker.server",
        "kbroker/cli/start/run.py": "import os\nfrom kbroker.broker import run",
        "kbroker/cli/topics/app.py": "from kbroker import __version__\nfrom kbroker.metadata import controller",
        "kbroker/cli/groups/app.py": "from kbroker.broker import run",
        "kbroker/attic/old.py": "",
        "protocol/fast/primitives.py": "import socket\nfrom kbroker.common import Buffer",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(faults(tmp_path)) == [
        "kbroker/attic/old.py: the package attic has no layer",
        "kbroker/cli/groups/app.py: imports broker, which is not below cli",
        "kbroker/cli/topics/app.py: imports metadata, which is not below cli",
        "kbroker/config/clock.py: imports time below the edge",
        "kbroker/config/dice.py: imports random below the edge",
        "kbroker/config/dice.py: instantiates Random",
        "kbroker/config/loop.py: imports asyncio below the edge",
        "kbroker/config/loop.py: is pure and has a coroutine",
        "kbroker/config/sleeping.py: is pure and imports asyncio",
        "kbroker/config/up.py: imports storage, which is not below config",
        "kbroker/config/up.py: is pure and imports kbroker/storage/log/log.py, which is not",
        "kbroker/config/up_for_types.py: imports api, which is not below config",
        "kbroker/coordination/zookeeper.py: imports kazoo.client below the edge",
        "kbroker/coordination/zookeeper.py: imports threading below the edge",
        "kbroker/metadata/metadata_loader.py: imports replica, which is not below metadata",
        "kbroker/replica/replica_manager.py: imports broker, which is not below replica",
        "kbroker/replica/replica_manager.py: imports relatively from .",
        "kbroker/runtime/environment.py: imports storage, which is not below runtime",
        "kbroker/server/socket_server.py: imports broker, which is not below server",
        "kbroker/storage/producers/impure.py: is pure and imports kbroker/storage/log/log.py, which is not",
        "protocol/fast/primitives.py: imports common, which is not below protocol",
        "protocol/fast/primitives.py: imports socket below the edge",
    ]
