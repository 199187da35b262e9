"""A log in a real directory, whose background jobs are run by the test."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from kbroker.common import Buffer, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage.checkpoint_files import IndexEntries
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import PositionCache
from kbroker.storage.recovery.open_log import open_log
from kbroker.storage.recovery.truncation import truncate_fully_and_start_at, truncate_to
from protocol.records.batch import build_batch, iter_headers, parse_header

TP = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
NOW = 1_700_000_000_000
DEFAULTS = TopicConfig.of()


def config(**values: Any) -> TopicConfig:
    """Return the default topic configs with some changed; their values are not validated."""
    return replace(DEFAULTS, **values)


class Background:
    """Runs jobs at once, or if `hold` is set, when `run` is called; delayed jobs when `run_delayed` is called."""

    def __init__(self) -> None:
        self.hold = False
        self.held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.delayed: list[tuple[int, Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, job: Callable[[], Any], on_done: Callable[[Any], None], delay_ms: int = 0, /) -> None:
        if delay_ms:
            self.delayed.append((delay_ms, job, on_done))
        elif self.hold:
            self.held.append((job, on_done))
        else:
            on_done(job())

    def run(self) -> None:
        while self.held:
            job, on_done = self.held.pop(0)
            on_done(job())

    def run_delayed(self) -> None:
        delayed, self.delayed = self.delayed, []
        for _, job, on_done in delayed:
            on_done(job())


class Owner:
    """The LogOwner of a log that is truncated with `truncate`. `writes` are called for each write of checkpoints."""

    def __init__(self) -> None:
        self.writes: list[Callable[[], Any]] = []
        self.tasks: set[Any] = set()
        self.high_watermark = 0
        self.shortages: list[str] = []

    def create_future(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Any, /) -> None:
        self.tasks.add(asyncio.ensure_future(coroutine))

    async def write_checkpoints(self) -> None:
        for write in self.writes:
            write()

    def written_high_watermark(self, tp: TopicPartition) -> int:
        return self.high_watermark

    def on_shortage(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        self.shortages.append(operation)


class Lab:
    """The directory of a partition. `open` opens its log, also repeatedly."""

    def __init__(self, tmp_path: Path, disk: Disk | None = None, **values: Any) -> None:
        self.path = tmp_path / "data" / str(TP)
        self.disk = disk or RealDisk()
        self.config = config(**values)
        self.background = Background()
        self.owner = Owner()

    def open(
        self,
        recovery_point: int = 0,
        clean: bool = False,
        log_start: int = 0,
        now_ms: int = NOW,
        cleaned_to: int = 0,
        *,
        checkpointed: bool = False,
        high_watermark: int | None = None,
        transaction_indexes: IndexEntries | None = MappingProxyType({}),
    ) -> Log:
        return open_log(
            self.disk,
            str(self.path),
            TP,
            TOPIC_ID,
            self.config,
            recovery_point,
            clean,
            now_ms,
            background=self.background,
            random=Random(1),
            log_start_offset=log_start,
            cleaned_to=cleaned_to,
            checkpointed=checkpointed,
            high_watermark=high_watermark,
            transaction_indexes=transaction_indexes,
            owner=self.owner,
        )

    def close(self, log: Log) -> bool:
        """Close the log; returns whether that succeeded."""
        results: list[bool] = []
        log.durability.close(True, results.append)
        self.background.run()
        return results == [True]

    def files(self, suffix: str = "") -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.name.endswith(suffix))


def batch(count: int = 1, size: int = 20, timestamp: int = NOW, **fields: Any) -> bytearray:
    """Build a batch of records of `size` pseudorandom bytes, 1 ms apart."""
    records = [(timestamp + n, b"k%d" % n, bytes((n + i) % 251 for i in range(size)), ()) for n in range(count)]
    return build_batch(records, **fields)


def append(log: Log, data: bytearray, epoch: int = 0, now_ms: int = NOW) -> int:
    return log.append(data, parse_header(data, 0), epoch, now_ms)


def append_run(log: Log, data: Buffer, now_ms: int = NOW) -> int:
    """Append the batches of a leader's log; returns the new log end offset."""
    return log.append_as_follower(data, [header for _, header in iter_headers(data)], now_ms)


def truncate(log: Log, offset: int) -> None:
    asyncio.run(truncate_to(log, offset))


def start_at(log: Log, offset: int) -> None:
    asyncio.run(truncate_fully_and_start_at(log, offset))


def forget_positions(log: Log) -> None:
    """Make reads find their positions in the indexes and in the log."""
    log.positions = PositionCache(log.active)
    log.contents = object()


def fill(log: Log, count: int, **kinds: Any) -> list[int]:
    """Append batches with varying record counts and sizes; returns their base offsets."""
    offsets = []
    for n in range(count):
        offsets.append(append(log, batch(1 + n % 3, 10 + 37 * n % 200, NOW + 10 * n, **kinds)))
    return offsets


def content(log: Log) -> bytes:
    """Return the bytes of all batches from the log start offset on."""
    parts = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
        parts.append(data)
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            position += header.size
            offset = header.next_offset
    return b"".join(parts)
