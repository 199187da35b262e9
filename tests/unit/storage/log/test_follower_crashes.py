"""The log of a follower on a simulated disk: at any change of the disk the process is killed or the power is lost.

The leader changes, so the follower truncates its log, and other batches follow. After each recovery the log is a prefix
of one of the leaders' logs: after a kill, of the one that was followed last, with everything that was appended; after a
power loss at least everything below the recovery point.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.simulation.disk.device import MachineCrashed
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.log.log import Log
from kbroker.storage.recovery.truncation import truncate_to
from protocol.records.batch import BatchHeader, iter_headers
from tests.sampling import third_of
from tests.unit.support.compaction import StoppedClock
from tests.unit.support.damaged_log import memory_lab
from tests.unit.support.log_lab import NOW, TP, Lab, Owner, content
from tests.unit.support.replicated_log import Write, state_of, store

CRASHES = 8
CONFIG = {"segment_bytes": 900, "index_interval_bytes": 150}
DATA = "/data"

History = list[tuple[bytes, BatchHeader]]


def random_batches(random: Random, offset: int, epoch: int) -> History:
    writes = [
        Write(
            random.randrange(-1, 3),
            random.randrange(1, 4),
            random.choice((0, 20, 300)),
            random.random() < 0.5,
            random.choice((None, None, True, False)),
            False,
            random.choice((0, 0, 0, 4)),
        )
        for _ in range(random.randrange(1, 12))
    ]
    stored = store(writes, offset=offset, epoch=epoch)
    return [(stored.data[position : position + header.size], header) for position, header in stored.at]


def end_of(history: History) -> int:
    return history[-1][1].next_offset if history else 0


def starts_with(history: History, data: bytes) -> bool:
    return b"".join([batch for batch, _ in history])[: len(data)] == data


class CheckpointingOwner(Owner):
    """Writes the checkpoint files as the log manager does."""

    def __init__(self, test: "FollowerCrashTest") -> None:
        super().__init__()
        self.writes.append(test.write_checkpoints)
        self._test = test

    def written_high_watermark(self, tp: TopicPartition) -> int:
        return 0


class FollowerCrashTest:
    """`followed`: the logs that a power loss may bring back; the last one is the current leader's. `safe`: the offset
    below which no power loss may remove anything."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(StoppedClock(), Random(f"{seed}/disk"))
        self.disk.makedirs(DATA)
        checkpoint_files.write_offsets(self.disk, DATA, file_names.RECOVERY_POINTS, {})
        self.disk.sync_dir("/")
        self.lab = Lab(Path("/"), self.disk, **CONFIG)
        self.epoch = 0
        self.followed: list[History] = [[]]
        self.safe = 0
        self.is_truncating = False
        self.log = self.open()

    def open(self) -> Log:
        self.lab.disk = self.disk
        self.lab.owner = CheckpointingOwner(self)
        point, start = (
            checkpoint_files.read_offsets(self.disk, DATA, name).get(TP, 0)
            for name in (file_names.RECOVERY_POINTS, file_names.LOG_START_OFFSETS)
        )
        return self.lab.open(point, log_start=start, checkpointed=True)

    def write_checkpoints(self) -> None:
        log = self.log
        for name, offset in (
            (file_names.RECOVERY_POINTS, log.durable_recovery_point),
            (file_names.LOG_START_OFFSETS, log.log_start_offset),
        ):
            checkpoint_files.write_offsets(self.disk, DATA, name, {TP: offset})

    # Operations.

    def append(self) -> None:
        leader = self.followed[-1]
        if end_of(leader) <= self.log.log_end_offset:
            self.epoch += 1
            leader += random_batches(self.random, end_of(leader), self.epoch)
        new = [batch for batch in leader if batch[1].base_offset >= self.log.log_end_offset]
        new = new[: self.random.randrange(1, 6)]
        self.log.append_as_follower(b"".join([data for data, _ in new]), [header for _, header in new], NOW)

    def flush(self) -> None:
        log = self.log
        log.complete_flush(log.durability.flush_blocking(log.log_end_offset), log.truncations)
        self._mark_safe()

    def checkpoint(self) -> None:
        self.log.durability.checkpoint()
        self.write_checkpoints()
        self._mark_safe()

    def _mark_safe(self) -> None:
        self.safe = self.log.recovery_point
        self.followed = self.followed[-1:]

    def truncate(self) -> None:
        """Another leader has a part of the log."""
        leader = self.followed[-1]
        kept = self.random.randrange(len(leader) + 1) if self.random.random() < 0.3 else max(len(leader) - 2, 0)
        offset = end_of(leader[:kept])
        if offset >= self.log.log_end_offset:
            return
        self.safe = min(self.safe, offset)
        self.followed.append(leader[:kept])
        self.is_truncating = True
        asyncio.run(self._drive(truncate_to(self.log, offset)))
        self.is_truncating = False
        assert self.log.log_end_offset <= offset

    async def _drive(self, truncation: Coroutine[Any, Any, None]) -> None:
        waiting = asyncio.ensure_future(truncation)
        while not waiting.done():
            await asyncio.sleep(0)
            for task in [task for task in self.lab.owner.tasks if task.done()]:
                self.lab.owner.tasks.discard(task)
                if task.exception() is not None:
                    waiting.cancel()
                    raise task.exception()
        await waiting

    # Crashes.

    def crash(self) -> None:
        random = self.random
        power = random.random() < 0.5
        states: list[SimDisk] = []
        disk = self.disk
        disk.crash_after(random.randrange(50), lambda: states.append(disk.after_crash(power)))
        try:
            for _ in range(40):
                getattr(self, random.choice(("append", "append", "append", "flush", "checkpoint", "truncate")))()
            states.append(disk.after_crash(power))
        except MachineCrashed:
            pass
        (self.disk,) = states
        self.log = self.open()
        self.check(power)

    def check(self, power: bool) -> None:
        log, data = self.log, content(self.log)
        candidates = self.followed if power else self.followed[-2:] if self.is_truncating else self.followed[-1:]
        found = [history for history in candidates if starts_with(history, data)]
        assert found, f"{log.log_end_offset} is the end of none of {len(candidates)} logs"
        assert log.log_end_offset >= self.safe
        # The state is that of the batches.
        expected = memory_lab(**CONFIG).open()
        if data:
            expected.append_as_follower(data, [header for _, header in iter_headers(data)], NOW)
        for each in (log, expected):
            each.update_high_watermark(each.log_end_offset)
        assert state_of(log) == state_of(expected)
        # Continue with what is left.
        left = [batch for batch in found[-1] if batch[1].next_offset <= log.log_end_offset]
        # Recovery syncs nothing, so a power loss may still bring back what a kill has removed.
        self.followed = [left] if power else [*self.followed, left]
        self.safe, self.is_truncating = min(self.safe, log.log_end_offset), False


@pytest.mark.parametrize("seed", third_of(range(40)))
def test_crashes_of_a_follower(seed: int) -> None:
    test = FollowerCrashTest(seed)
    for _ in range(CRASHES):
        test.crash()
