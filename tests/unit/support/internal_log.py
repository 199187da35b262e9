"""A coordinator's environment in tests: virtual time, and an internal log in memory."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.environment import Environment
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.producers.producer_state_manager import NO_SEQUENCE, ProducerStateManager
from kbroker.storage.producers.transactions import TransactionMarker, VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers, parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.batch_fields import patch_base_offset

T = TypeVar("T")
START_MS = 1_700_000_000_000


class VirtualLoop(SimLoop):
    """The event loop of simulations. Time only passes when a test says so."""

    def run_ready(self) -> None:
        """Run everything that is ready, without advancing the time."""

        async def iterate() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        self.run_until_complete(iterate())

    def pass_ms(self, milliseconds: int) -> None:
        self.run_until_complete(asyncio.sleep(milliseconds / 1000))
        self.run_ready()


class VirtualClock:
    """`skew_ms` moves the wall clock against the monotonic clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def mono_ms(self) -> int:
        return self._loop.elapsed_ns // 1_000_000

    def mono_ns(self) -> int:
        return self._loop.elapsed_ns

    def now_ms(self) -> int:
        return START_MS + self.mono_ms() + self.skew_ms


def virtual_environment(loop: VirtualLoop) -> Environment:
    async def offload(fn: Callable[..., T], /, *args: object) -> T:
        await asyncio.sleep(0)
        return fn(*args)

    return Environment(loop, VirtualClock(loop), SimpleNamespace(), random.Random(7), offload, SimpleNamespace())


@dataclass
class Waiting:
    tp: TopicPartition
    offset: int
    callback: Callable[[ErrorCode], None]


class MemoryLog:
    """An InternalLog whose high watermark follows each append at once, or while `held` when the test calls `commit`."""

    def __init__(self) -> None:
        self.batches: dict[TopicPartition, list[bytearray]] = {}
        self.producers: defaultdict[TopicPartition, ProducerStateManager] = defaultdict(ProducerStateManager)
        self.held = False
        # The error of every append, and the size of the largest batch that is accepted.
        self.append_error: ErrorCode | None = None
        self.max_batch = 1 << 20
        # Whether it is known before an append that it will fail.
        self.is_under_min_isr = False
        self.read_error: Exception | None = None
        self.read_sizes: list[int] = []
        self.waiting: list[Waiting] = []
        self.high_watermarks: defaultdict[TopicPartition, int] = defaultdict(int)
        # Those of logs whose records are all deleted.
        self.end_offsets: defaultdict[TopicPartition, int] = defaultdict(int)
        # The partitions whose replica has not taken its new role yet.
        self.without_role: set[TopicPartition] = set()

    def end_offset(self, tp: TopicPartition) -> int:
        batches = self.batches.get(tp)
        return parse_header(batches[-1]).next_offset if batches else self.end_offsets[tp]

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        header, producers = parse_header(batch), self.producers[tp]
        is_transactional_data = header.is_transactional and not header.is_control
        if is_transactional_data:
            producers.check_internal(header, guard, verify)
        if self.append_error is not None:
            raise KafkaError(self.append_error)
        if len(batch) > self.max_batch:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        base_offset = self.end_offset(tp)
        patch_base_offset(batch, 0, base_offset)
        self.batches.setdefault(tp, []).append(batch)
        if is_transactional_data:
            producers.update(header, base_offset)
        return self.end_offset(tp)

    def max_append_bytes(self, tp: TopicPartition) -> int:
        if self.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return self.max_batch

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        return self.producers[tp].begin_verification(producer_id, epoch, NO_SEQUENCE, False)

    def append_marker(
        self, tp: TopicPartition, marker: TransactionMarker, on_committed: Callable[[ErrorCode], None]
    ) -> None:
        end = EndTransactionMarker(marker.committed, marker.coordinator_epoch)
        batch = build_end_marker(end, marker.producer_id, marker.producer_epoch, 1)
        base_offset = self.end_offset(tp)
        try:
            self.producers[tp].check_marker(marker)
            self.append_internal(tp, batch)
        except KafkaError as error:
            on_committed(error.code)
            return
        self.producers[tp].end_transaction(parse_header(batch), base_offset, marker.committed, marker.coordinator_epoch)
        self.on_committed(tp, base_offset + 1, on_committed)

    def on_committed(self, tp: TopicPartition, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        if self.held and offset > self.high_watermarks[tp]:
            self.waiting.append(Waiting(tp, offset, callback))
        else:
            self.high_watermarks[tp] = max(self.high_watermarks[tp], offset)
            callback(ErrorCode.NONE)

    def leader_end_offset(self, tp: TopicPartition, leader_epoch: int) -> int:
        if tp in self.without_role:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.end_offset(tp)

    def start_offset(self, tp: TopicPartition) -> int:
        batches = self.batches.get(tp)
        return parse_header(batches[0]).base_offset if batches else self.end_offsets[tp]

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Delete complete batches, as the deletion of segments does."""
        self.end_offsets[tp] = self.end_offset(tp)
        kept = min(offset, self.high_watermarks[tp])
        self.batches[tp] = [batch for batch in self.batches.get(tp, []) if parse_header(batch).next_offset > kept]

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        self.read_sizes.append(size)
        if self.read_error is not None:
            raise self.read_error
        for batch in self.batches.get(tp, []):
            if parse_header(batch).next_offset > offset:
                return bytes(batch)
        return b""

    def commit(self, count: int | None = None) -> None:
        """Advance the high watermark over the oldest `count` pending appends."""
        committed, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for append in committed:
            self.high_watermarks[append.tp] = max(self.high_watermarks[append.tp], append.offset)
            append.callback(ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        """Fail all pending appends: they can never be committed."""
        failed, self.waiting = self.waiting, []
        for append in failed:
            append.callback(error)

    def record_count(self) -> int:
        return sum(header.count for batches in self.batches.values() for b in batches for _, header in iter_headers(b))
