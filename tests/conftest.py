"""How the tests are shared out when pytest-xdist runs them in two processes (./scripts/test)."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Each stays in one process, in order, so that what its tests share (a broker, a JVM, a Spark) exists once. The longest
# first, for the two processes to end at about the same time. A test is of the narrowest that it is in.
GROUPS = (
    "tests/compat/spark/",
    "tests/unit/simulation/",
    "tests/compat/",
    "tests/compat/transactions/",
    "tests/unit/",
    "tests/compat/hostile/",
)
# Its tests compare times of milliseconds, so nothing runs beside it. Last, when the others' tests are short.
ALONE = "tests/compat/hostile/"


def group_of(test: str) -> str:
    """The group of a test, of which its id is given: tests/unit/test_world.py::test_time[late]"""
    return max((group for group in GROUPS if test.startswith(group)), key=len)


class Room:
    """Where the tests of both processes are: many at once, or the group that is alone. Whoever waits to be alone
    stands in the door meanwhile, so that it is not kept waiting for ever."""

    def __init__(self, place: Path) -> None:
        self._door = os.open(place / "door", os.O_CREAT | os.O_RDWR, 0o600)
        self._room = os.open(place / "room", os.O_CREAT | os.O_RDWR, 0o600)
        self.alone = False

    def enter(self, alone: bool) -> None:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        self.alone = alone

    def leave(self) -> None:
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self.alone = False


_ROOM = pytest.StashKey[Room]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # Beside the temporary directories of this run's processes.
        config.stash[_ROOM] = Room(Path(config.option.basetemp).parent)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: GROUPS.index(group_of(item.nodeid)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    room = item.config.stash.get(_ROOM, None)
    if room is None:
        return (yield)
    if not room.alone:
        room.enter(item.nodeid.startswith(ALONE))
    try:
        return (yield)
    finally:
        if not (room.alone and nextitem is not None and nextitem.nodeid.startswith(ALONE)):
            room.leave()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # Not --dist loadgroup: with pytest 9 the groups of pytest-xdist 3.8 are not heeded.
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)
