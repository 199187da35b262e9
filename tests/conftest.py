"""How pytest-xdist divides the tests between processes (./scripts/test).

A scope is a set of tests that run in one process, in order; the process that becomes idle takes the next scope. Tests
that share something expensive (Spark, a JVM) are one scope; other scopes are small. Long scopes come first and short
ones last, so that all processes end at about the same time.
"""

import fcntl
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same inputs in each run, so that a run fails only because of a change, and no limit of time per input, which a
# busy machine would exceed. `pytest --hypothesis-profile=explore` chooses new inputs.
# They are fewer than those of `explore`: repeated inputs find nothing new.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")

# Each folder, file or test is a scope of its own.
FOLDER, FILE, TEST = "folder", "file", "test"
# The scope of the tests whose ids have a prefix (the longest one counts), in the order in which scopes begin.
SCOPES = {
    "tests/compat/spark/pipeline/": "Spark pipeline",
    "tests/compat/spark/pipeline/test_a": "Spark",
    "tests/compat/transactions/": "transactions",
    "tests/compat/kafka_tools/": "JVM",
    "tests/compat/compaction/": "JVM",
    "tests/compat/queues/test_java": "JVM",
    "tests/compat/mirror/": "MirrorMaker",
    "tests/compat/cluster/growth/": "growth",
    # In one process these would take longer than everything else: each scope has a cluster of its own.
    "tests/compat/cluster/": "cluster",
    "tests/compat/cluster/growth/test_reassignment": "cluster",
    "tests/compat/cluster/surge/test_slow_clients": "cluster",
    "tests/compat/cluster/test_restored_metadata": "restored and lost metadata",
    "tests/compat/cluster/test_lost_metadata": "restored and lost metadata",
    "tests/compat/cluster/test_full_disks": "full disks and surges",
    "tests/compat/cluster/surge/": "full disks and surges",
    "tests/compat/cluster/groups/": "groups",
    # These share a JVM.
    "tests/compat/cluster/test_streams": "streams and logins",
    "tests/compat/streams/": "streams and logins",
    "tests/compat/security/": "streams and logins",
    "tests/compat/spark/": "Spark",
    "tests/compat/cluster/failover/": "Spark",
    # These wait more than they calculate; those of tests/unit use the time.
    "tests/compat/crash/": FILE,
    "tests/compat/zookeeper/": FILE,
    "tests/compat/": FOLDER,
    "tests/unit/simulation/": TEST,
    "tests/unit/": FILE,
    # These measure no durations.
    "tests/compat/hostile/test_descriptors": FILE,
    "tests/compat/hostile/test_pipelined": FILE,
    "tests/compat/hostile/": "hostile",
}
# The hostile tests compare durations, so no other test runs with them. They come last, when few tests are left that
# have to wait for them.
EXCLUSIVE = "hostile"


def prefix_of(test_id: str) -> str:
    """Return the longest prefix of a test id such as tests/unit/test_broker.py::test_repeated_crashes."""
    return max((prefix for prefix in SCOPES if test_id.startswith(prefix)), key=len)


def scope_of(test_id: str) -> str:
    scope = SCOPES[prefix_of(test_id)]
    file = test_id.partition("::")[0]
    return {FOLDER: file.rpartition("/")[0], FILE: file, TEST: test_id}.get(scope, scope)


class ExclusionLock:
    """A lock between the processes: shared by any number of tests, or held by the exclusive ones alone.

    A process that waits for the exclusive lock keeps the queue locked, so that others cannot overtake it forever.
    """

    def __init__(self, directory: Path) -> None:
        self._queue = os.open(directory / "queue.lock", os.O_CREAT | os.O_RDWR, 0o600)
        self._tests = os.open(directory / "tests.lock", os.O_CREAT | os.O_RDWR, 0o600)
        self.is_exclusive = False

    def acquire(self, exclusive: bool) -> None:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        fcntl.flock(self._tests, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        self.is_exclusive = exclusive

    def release(self) -> None:
        fcntl.flock(self._tests, fcntl.LOCK_UN)
        self.is_exclusive = False


_LOCK = pytest.StashKey[ExclusionLock]()
_DIRECTORY = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # The parent directory is shared by all processes of this run.
        config.stash[_DIRECTORY] = Path(config.option.basetemp).parent
        config.stash[_LOCK] = ExclusionLock(config.stash[_DIRECTORY])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect the tests without garbage collection, which never looks at them later, either.

    Tests are a million objects that live until the end. Looking for garbage among them took a quarter of the processor
    time of each process's start and end.
    """
    gc.disable()
    try:
        return (yield from _collect_after_another(session))
    finally:
        gc.freeze()
        gc.enable()


def _collect_after_another(session: pytest.Session) -> Generator[None, Any, Any]:
    """Let one process import the tests first: the others use the bytecode that it writes.

    Compiling all tests with pytest's assertions takes three times as long as importing them.
    """
    directory = session.config.stash.get(_DIRECTORY, None)
    if directory is None or sys.dont_write_bytecode:
        return (yield)
    collected = directory / "collected"
    with (directory / "collection.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if collected.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
        result = yield
        collected.touch()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        order = list(SCOPES)
        items.sort(key=lambda item: order.index(prefix_of(item.nodeid)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    lock = item.config.stash.get(_LOCK, None)
    if lock is None:
        return (yield)
    if not lock.is_exclusive:
        lock.acquire(scope_of(item.nodeid) == EXCLUSIVE)
    try:
        return (yield)
    finally:
        # Exclusive tests keep the lock from the first to the last of them.
        if not (lock.is_exclusive and nextitem is not None and scope_of(nextitem.nodeid) == EXCLUSIVE):
            lock.release()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # Not --dist loadgroup: pytest-xdist 3.8 ignores the groups with pytest 9.
    from xdist.scheduler import LoadScopeScheduling

    class ScopeScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return ScopeScheduling(config, log)
