"""The bytes of a log are compared with the state of its producers, also while the log is truncated and compacted."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.invariants.log_checker import LogChecker
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.simulation.invariants.replica_files import DIRECTORY, ReplicaFiles

PRODUCER_ID = 7


class CheckedLog:
    """A log of a partition with three replicas. It has what the checker reads of a log and of its partition."""

    def __init__(self, *, is_compacted: bool) -> None:
        self.disk = SimDisk(SimClock(SimLoop(0)), Random(0))
        self._files = ReplicaFiles(self.disk)
        self._checker = LogChecker(skips_unchanged=True)
        self.producers = ProducerStateManager()
        self.config = SimpleNamespace(is_compacted=is_compacted)
        self.directory = DIRECTORY
        self.epochs = LeaderEpochCache([(1, 0)])
        self.active = SimpleNamespace(base_offset=0)
        self.log_start_offset = self.log_end_offset = 0
        self.is_truncating = False

    def append(self, producer_epoch: int | None, *, state: bool = True) -> None:
        """Append a batch with one record, the first of its producer's epoch; None for a batch without a producer.

        `state`: update the producer's state.
        """
        producer = None if producer_epoch is None else (PRODUCER_ID, producer_epoch, 0)
        base = self.active.base_offset
        header = self._files.append(self.log_end_offset, b"v", epoch=1, segment=base, producer=producer)
        if state and producer is not None:
            self.producers.update(header, header.base_offset)
        self.log_end_offset = header.next_offset

    def append_marker(self, producer_epoch: int) -> None:
        end = EndTransactionMarker(committed=True, coordinator_epoch=0)
        data = build_end_marker(end, PRODUCER_ID, producer_epoch, 0)
        header = self._files.append_batch(data, self.log_end_offset, epoch=1, segment=self.active.base_offset)
        self.producers.end_transaction(header, header.base_offset, end.committed, end.coordinator_epoch)
        self.log_end_offset = header.next_offset

    def roll(self) -> None:
        self.active.base_offset = self.log_end_offset
        self._files.roll(self.log_end_offset)

    def fault(self) -> str | None:
        partition: Any = SimpleNamespace(log=self, state=SimpleNamespace(replicas=[1, 2, 3]))
        machine: Any = self
        return self._checker.check_new_batches(machine, partition)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_state_of_a_producer_is_behind_its_batches(is_compacted: bool) -> None:
    log = CheckedLog(is_compacted=is_compacted)
    log.append(1)
    assert log.fault() is None
    log.append(2, state=False)
    assert "is in the log with epoch 2; its state is" in (log.fault() or "")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_state_is_compared_when_the_truncation_has_ended(is_compacted: bool) -> None:
    log = CheckedLog(is_compacted=is_compacted)
    log.is_truncating = True
    log.append(1, state=False)
    assert log.fault() is None
    log.is_truncating = False
    log.roll()
    log.append(None)
    assert "is in the log with epoch 1; its state is" in (log.fault() or "")


@pytest.mark.parametrize(("log_start_offset", "is_permitted"), [(1, False), (2, True)])
def test_a_marker_may_have_an_older_epoch_only_if_the_producers_batches_were_deleted(
    log_start_offset: int, is_permitted: bool
) -> None:
    """Its leader may have begun at the log start, without the producer's state."""
    log = CheckedLog(is_compacted=False)
    log.append(None)
    log.append(2)
    assert log.fault() is None
    log.log_start_offset = log_start_offset
    log.append_marker(1)
    fault = log.fault()
    assert fault is None if is_permitted else "producer 7: epoch 1 after 2" in (fault or "")


def test_batches_in_segments_that_are_compacted_are_not_compared() -> None:
    """A producer wrote again into segments that were rolled since the last look, which the checker does not read."""
    log = CheckedLog(is_compacted=True)
    log.append(1)
    log.is_truncating = True
    assert log.fault() is None
    log.is_truncating = False
    log.append(2)
    log.roll()
    log.append(None)
    assert log.fault() is None
    log.append(3, state=False)
    assert "is in the log with epoch 3; its state is" in (log.fault() or "")
