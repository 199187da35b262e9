"""Positions do not go back, unless a log was truncated, or a new partition has the index of a removed one."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.simulation.invariants.broker import BrokenInvariant, Invariants
from kbroker.simulation.invariants.log_checker import LogChecker


def partition(high_watermark: int) -> Any:
    log = SimpleNamespace(
        log_start_offset=0, log_end_offset=9, truncations=0, is_truncating=False, health=SimpleNamespace(offline=None),
        checkpointed_high_watermark=high_watermark, producers=SimpleNamespace(had_transactions=True),
    )  # fmt: skip
    return SimpleNamespace(
        tp=TopicPartition("t", 0), topic_id=b"id", log=log, high_watermark=high_watermark,
        last_stable_offset=high_watermark, leader_epoch=1, first_offset=0, is_leader=False, is_closed=False,
    )  # fmt: skip


@pytest.mark.parametrize("is_new", [False, True])
def test_the_high_watermark_goes_back_between_two_checks(is_new: bool, monkeypatch: pytest.MonkeyPatch):
    for name in ("_check_bytes", "_check_dropped"):
        monkeypatch.setattr(Invariants, name, lambda *_: None)
    partitions = {0: partition(5)}
    replicas = SimpleNamespace(partitions=partitions, maintenance=SimpleNamespace(appends_suspended=False))
    invariants: Any = Invariants(SimpleNamespace(services=SimpleNamespace(replicas=replicas), name="broker"))  # type: ignore[arg-type]
    invariants.check(durability=False)
    if is_new:
        partitions[0] = partition(4)
        invariants.check(durability=False)
    else:
        partitions[0].high_watermark = partitions[0].last_stable_offset = 4
        with pytest.raises(BrokenInvariant, match="high_watermark went back from 5 to 4"):
            invariants.check(durability=False)


def test_a_log_is_checked_from_its_start_again_after_a_truncation(monkeypatch: pytest.MonkeyPatch):
    """Other batches may have been written after it, up to a position at which no batch begins."""
    checked: list[object] = []
    monkeypatch.setattr(Invariants, "_check_dropped", lambda *_: None)
    monkeypatch.setattr(LogChecker, "check_new_batches", lambda self, *_: checked.append(self))
    monkeypatch.setattr(LogChecker, "first_unstable_offset", lambda *_: None)
    follower = partition(5)
    replicas = SimpleNamespace(partitions={0: follower}, maintenance=SimpleNamespace(appends_suspended=False))
    invariants: Any = Invariants(SimpleNamespace(services=SimpleNamespace(replicas=replicas), name="broker"))  # type: ignore[arg-type]
    invariants.check(durability=False)
    follower.log.is_truncating = True
    invariants.check(durability=False)
    follower.log.truncations, follower.log.is_truncating = 1, False
    invariants.check(durability=False)
    first, second = checked
    assert first is not second


@pytest.mark.parametrize(("checkpointed", "high_watermark", "is_fault"), [(0, 5, False), (0, 9, True), (5, 5, True)])
def test_a_log_that_was_opened_without_a_high_watermark_is_unstable_up_to_its_end(
    checkpointed: int, high_watermark: int, is_fault: bool, monkeypatch: pytest.MonkeyPatch
):
    """It was set aside, so the checkpoint file does not have it any more. The leader has told the high watermark."""
    monkeypatch.setattr(Invariants, "_check_dropped", lambda *_: None)

    def read_from_start(checker: LogChecker, *_: object) -> None:
        checker.from_start = True

    monkeypatch.setattr(LogChecker, "check_new_batches", read_from_start)
    monkeypatch.setattr(LogChecker, "first_unstable_offset", lambda *_: 3)
    follower = partition(high_watermark)
    follower.last_stable_offset, follower.log.checkpointed_high_watermark = 0, checkpointed
    replicas = SimpleNamespace(partitions={0: follower}, maintenance=SimpleNamespace(appends_suspended=False))
    invariants: Any = Invariants(SimpleNamespace(services=SimpleNamespace(replicas=replicas), name="broker"))  # type: ignore[arg-type]
    if is_fault:
        with pytest.raises(BrokenInvariant, match="LSO 0; the transactions in the log make it 3"):
            invariants.check(durability=False)
    else:
        invariants.check(durability=False)
