"""The lock of a key: shared and exclusive operations, and their order."""

from collections.abc import Callable

import pytest

from kbroker.coordinator.runtime.key_lock import KeyLock
from kbroker.coordinator.runtime.operation import LockMode

SHARED, EXCLUSIVE, AFTER_SHARED = LockMode.SHARED, LockMode.EXCLUSIVE, LockMode.EXCLUSIVE_AFTER_SHARED


def acquire(lock: KeyLock, mode: LockMode) -> None:
    if mode is SHARED:
        lock.shared += 1
    else:
        lock.is_held = True


class Story:
    """Operations that all write records: each acquires the lock when it runs."""

    def __init__(self) -> None:
        self.lock = KeyLock()
        self.ran: list[str] = []

    def run(self, name: str, mode: LockMode) -> None:
        operation = self._operation(name, mode)
        if self.lock.must_wait(mode):
            self.lock.wait(operation, mode)
        else:
            operation()

    def _operation(self, name: str, mode: LockMode) -> Callable[[], None]:
        def operation() -> None:
            self.ran.append(name)
            acquire(self.lock, mode)

        return operation


def test_commits_are_pipelined_but_wait_for_an_exclusive_write() -> None:
    story = Story()
    story.run("commit 1", SHARED)
    story.run("commit 2", SHARED)
    story.run("sync", EXCLUSIVE)
    story.run("commit 3", SHARED)
    assert story.ran == ["commit 1", "commit 2", "sync"]
    story.lock.release(EXCLUSIVE)
    assert story.ran == ["commit 1", "commit 2", "sync", "commit 3"]


def test_an_operation_after_shared_ones_waits_for_commits_and_keeps_its_order() -> None:
    story = Story()
    story.run("commit 1", SHARED)
    story.run("delete", AFTER_SHARED)
    story.run("commit 2", SHARED)
    assert story.ran == ["commit 1"]
    story.lock.release(SHARED)
    assert story.ran == ["commit 1", "delete"]
    assert not story.lock.release(AFTER_SHARED)
    assert story.ran == ["commit 1", "delete", "commit 2"]
    assert story.lock.release(SHARED)


def test_waiting_exclusive_operations_run_one_at_a_time() -> None:
    story = Story()
    acquire(story.lock, EXCLUSIVE)
    for name in ("a", "b", "c"):
        story.run(name, EXCLUSIVE)
    for ran in (["a"], ["a", "b"], ["a", "b", "c"]):
        story.lock.release(EXCLUSIVE)
        assert story.ran == ran


def test_an_operation_that_raises_does_not_end_the_releases() -> None:
    lock = KeyLock()
    acquire(lock, EXCLUSIVE)
    ran: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    lock.wait(fail, EXCLUSIVE)
    lock.wait(lambda: ran.append("second"), EXCLUSIVE)
    with pytest.raises(ZeroDivisionError):
        lock.release(EXCLUSIVE)
    acquire(lock, EXCLUSIVE)
    assert lock.release(EXCLUSIVE)
    assert ran == ["second"]
