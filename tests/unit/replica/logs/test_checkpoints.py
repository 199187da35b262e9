"""Concurrent writes of the checkpoints."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from kbroker.common import TopicPartition
from kbroker.replica.logs.log_manager import LogManager
from kbroker.runtime.turns import TURN_ELEMENTS, Turns


@dataclass
class SlowDisk:
    """An offload and a disk. Jobs wait until `gate` is set. `together`: the most jobs that ran at the same time."""

    running: int = 0
    together: int = 0
    jobs: int = 0
    fail: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def offload(self, fn: Callable[..., object], *args: object) -> object:
        self.jobs += 1
        self.running += 1
        self.together = max(self.together, self.running)
        try:
            await self.gate.wait()
            return fn(*args)
        finally:
            self.running -= 1

    def exists(self, path: str) -> bool:
        return False

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        if self.fail:
            raise OSError(28, "No space left on device")


def directory(disk: SlowDisk) -> LogManager:
    environment = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        disk=disk,
        offload=disk.offload,
        turns=Turns(lambda: asyncio.sleep(0), lambda: 0),
    )
    return LogManager(environment, "/data", lambda: None)  # type: ignore[arg-type, return-value]


def test_checkpoints_are_written_one_at_a_time() -> None:
    """Each call, from the checkpoint task, retention or DeleteRecords, returns after a write that started after it."""

    async def scenario() -> SlowDisk:
        disk = SlowDisk()
        logs = directory(disk)
        first = asyncio.ensure_future(logs.write_checkpoints())
        while not (disk.jobs or first.done()):
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(logs.write_checkpoints()) for _ in range(3)]
        await asyncio.sleep(0)
        disk.gate.set()
        await asyncio.gather(first, *later)
        await logs.write_checkpoints()
        return disk

    disk = asyncio.run(scenario())
    assert disk.together == 1
    assert disk.jobs == 3


def test_write_checkpoints_raises_the_error_of_the_disk() -> None:
    async def scenario() -> None:
        disk = SlowDisk(fail=True)
        disk.gate.set()
        logs = directory(disk)
        with pytest.raises(OSError, match="No space"):
            await logs.write_checkpoints()
        disk.fail = False
        await logs.write_checkpoints()

    asyncio.run(scenario())


def test_the_offsets_of_many_logs_are_collected_in_turns() -> None:
    async def scenario() -> int:
        disk = SlowDisk()
        disk.gate.set()
        logs = directory(disk)
        log = SimpleNamespace(durable_recovery_point=5, log_start_offset=0, cleaned_to=0, last_aborted_offset=-1)
        for index in range(10 * TURN_ELEMENTS):
            logs._logs[TopicPartition("t", index)] = SimpleNamespace(tp=TopicPartition("t", index), **vars(log))  # type: ignore[assignment]
        turns = 0
        writing = asyncio.ensure_future(logs.write_checkpoints())
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        await writing
        return turns

    assert asyncio.run(scenario()) >= 10
