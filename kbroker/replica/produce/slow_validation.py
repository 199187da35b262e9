"""Validates the records of batches while other requests are served. batch_validation.py decides which batches need it.

A batch of a kilobyte may decompress to a gigabyte or contain a million records, and must not block the event loop.
Therefore `validate_small` validates a batch only if that takes at most a tenth of a millisecond. For other batches it
raises AppendMustWait, and the caller waits for `RecordValidator.validate`:

- Decompression and compression run in a thread, without the GIL.
- Records are walked on the event loop, one slice of one batch in each iteration. A thread would not help: walking is
  Python code that holds the GIL, and each switch would cost other requests up to 5 ms.
- Memory is bounded: at most two decompressed batches exist, one of at most 1 MiB and one of any size.
"""

from __future__ import annotations

from asyncio import Lock, sleep
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from kbroker.common import Buffer, KafkaError
from kbroker.config import TopicConfig
from kbroker.replica.produce.record_rules import (
    InspectedBatch,
    InspectRecords,
    ValidatedBatch,
    WritableBatch,
    convert,
    target_codec,
    too_large,
    walk_records,
)
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import wait_in_turn
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader, body_of
from protocol.records.compression import GZIP, NONE, TooLargeError, compress, decompress, decompress_mapped

T = TypeVar("T")

MIB = 1 << 20
MAX_DECOMPRESSED = 24 * MIB
# Limits in bytes for decompression on the event loop: of the compressed data (lower for gzip, whose empty members of 20
# bytes take 5 us each; an empty zstd block of 3 bytes takes 10 ns) and of the decompressed data.
SMALL = 16 * 1024
SMALL_GZIP = 1024
SMALL_DECOMPRESSED = 64 * 1024
MEDIUM_DECOMPRESSED = MIB
# A batch with more than QUICK_SLICES gets PACED_SLICES per millisecond: the operating system's scheduler would treat a
# process that is never idle as a batch job.
QUICK_SLICES = 64
PACED_SLICES = 2
PACE_S = 0.001


class AppendMustWait(Exception):
    """An append has to wait before it can continue. The caller awaits `wait`, and retries with its result."""

    def __init__(
        self, reason: str, wait: Callable[[RecordValidator], Awaitable[ValidatedBatch | InspectedBatch | None]]
    ) -> None:
        super().__init__(reason)
        self.wait = wait


def inspect_small(validated: ValidatedBatch, inspect: InspectRecords, config: TopicConfig) -> InspectedBatch:
    """Walk the records of a valid batch. Raises KafkaError, and AppendMustWait if that would take too long."""
    batch, header, _ = validated
    body = _decompress_small(header.codec, body_of(batch, 0, header.size))
    if body is not None:
        try:
            return InspectedBatch(validated, inspect, inspect(body, header, _stop), body)
        except _TakesLong:
            pass
    raise AppendMustWait(
        "the records of a batch need slow inspection", lambda validator: validator.inspect(validated, inspect, config)
    )


def validate_small(batch: WritableBatch, header: BatchHeader, config: TopicConfig, now_ms: int) -> ValidatedBatch:
    """Validate and convert a batch. Raises KafkaError, and AppendMustWait if that would take too long."""
    body = _decompress_small(header.codec, body_of(batch, 0, header.size))
    if body is not None:
        try:
            max_timestamp = walk_records(body, header, config, now_ms, _stop)
        except _TakesLong:
            raise _slow_validation(batch, header, config, now_ms) from None
        codec = target_codec(header, config)
        if codec == header.codec:
            return convert(batch, header, config, now_ms, max_timestamp, None)
        if len(body) <= SMALL:
            recompressed = compress(codec, body, _level(codec, config))
            return convert(batch, header, config, now_ms, max_timestamp, recompressed)
    raise _slow_validation(batch, header, config, now_ms)


def _slow_validation(batch: WritableBatch, header: BatchHeader, config: TopicConfig, now_ms: int) -> AppendMustWait:
    return AppendMustWait(
        "the records of a batch need slow validation",
        lambda validator: validator.validate(batch, header, config, now_ms),
    )


class _TakesLong(Exception):
    """The records take longer than a slice to be walked."""


def _stop() -> None:
    raise _TakesLong


def must_rewrite(
    inspected: InspectedBatch, config: TopicConfig, request: object, build: Callable[[Buffer], bytearray]
) -> AppendMustWait:
    """Return the error to raise for a large batch that `RecordValidator.rewrite` must rebuild first."""
    return AppendMustWait(
        "a large batch must be rewritten", lambda validator: validator.rewrite(inspected, config, request, build)
    )


def _decompress_small(codec: int, data: memoryview) -> Buffer | None:
    if codec == NONE:
        # Walking bytes is faster than walking a memoryview.
        return bytes(data) if len(data) <= SMALL_DECOMPRESSED else data
    if len(data) > (SMALL_GZIP if codec == GZIP else SMALL):
        return None
    try:
        return decompress(codec, data, SMALL_DECOMPRESSED)
    except TooLargeError:
        return None
    except MalformedError as error:
        raise _cannot_decompress(error) from None


def _cannot_decompress(error: MalformedError) -> KafkaError:
    """Return the error that Kafka sends, where this is an unexpected error."""
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Records cannot be decompressed: {error}.")


def _level(codec: int, config: TopicConfig) -> int | None:
    levels = (None, config.compression_gzip_level, None, config.compression_lz4_level, config.compression_zstd_level)
    return levels[codec]


class RecordValidator:
    """Runs all slow validations of a broker."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._offload = environment.offload
        # Each lock admits one batch: one decompressed to at most MEDIUM_DECOMPRESSED, one decompressed to more, one
        # being compressed, and one being walked in this iteration of the event loop.
        self._medium = Lock()
        self._large = Lock()
        self._compressing = Lock()
        self._walking = Lock()

    async def validate(
        self, batch: WritableBatch, header: BatchHeader, config: TopicConfig, now_ms: int
    ) -> ValidatedBatch:
        """Validate and convert a batch, whose buffer must not change meanwhile. Raises KafkaError."""

        async def validate_body(body: Buffer) -> ValidatedBatch:
            max_timestamp = await self._walk(partial(walk_records, body, header, config, now_ms))
            recompressed = None
            codec = target_codec(header, config)
            if codec != header.codec:
                if codec == NONE and len(body) > config.max_message_bytes:
                    raise too_large(len(body), config)
                async with self._compressing:
                    recompressed = await self._offload(compress, codec, body, _level(codec, config))
            return convert(batch, header, config, now_ms, max_timestamp, recompressed)

        return await self._use_body(batch, header, config, validate_body)

    async def inspect(self, validated: ValidatedBatch, inspect: InspectRecords, config: TopicConfig) -> InspectedBatch:
        """Walk the records of a valid batch, whose buffer must not change meanwhile. Raises KafkaError."""
        batch, header, _ = validated

        async def walk(body: Buffer) -> object:
            return await self._walk(partial(inspect, body, header))

        return InspectedBatch(validated, inspect, await self._use_body(batch, header, config, walk), None)

    async def rewrite(
        self, inspected: InspectedBatch, config: TopicConfig, request: object, build: Callable[[Buffer], bytearray]
    ) -> InspectedBatch:
        """Call `build` in a thread with the decompressed records of a large batch. Raises KafkaError.

        `request` identifies the result (InspectedBatch.rewritten), so that it is built once.
        """
        batch, header, _ = inspected.validated

        async def build_in_thread(body: Buffer) -> bytearray:
            async with self._compressing:
                return await self._offload(build, body)

        inspected.rewritten = (request, await self._use_body(batch, header, config, build_in_thread))
        return inspected

    async def _use_body(
        self, batch: WritableBatch, header: BatchHeader, config: TopicConfig, use: Callable[[Buffer], Awaitable[T]]
    ) -> T:
        """Decompress the records of a batch for `use`, within the limits of memory. Raises KafkaError."""
        codec, data = header.codec, body_of(batch, 0, header.size)
        if codec == NONE:
            return await use(data)
        try:
            async with self._medium:
                return await use(await self._decompress(codec, data, MEDIUM_DECOMPRESSED))
        except TooLargeError:
            pass
        try:
            async with self._large:
                limit = max(MAX_DECOMPRESSED, config.max_message_bytes)
                return await use(await self._decompress(codec, data, limit))
        except TooLargeError as error:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The record batch has {error}.") from None

    async def _decompress(self, codec: int, data: memoryview, limit: int) -> Buffer:
        try:
            return await self._offload(decompress_mapped, codec, data, limit)
        except TooLargeError:
            raise
        except MalformedError as error:
            raise _cannot_decompress(error) from None

    async def _walk(self, walk: Callable[[Callable[[], None]], T]) -> T:
        """Walk the records in turns. Batches that are walked at the same time alternate."""
        slices, holds_lock = 0, False

        async def next_slice() -> None:
            nonlocal slices, holds_lock
            slices += 1
            is_paced = slices > QUICK_SLICES
            if is_paced and slices % PACED_SLICES:
                return
            await sleep(0)
            holds_lock = False
            self._walking.release()
            if is_paced:
                await sleep(PACE_S)
            holds_lock = await self._walking.acquire()

        holds_lock = await self._walking.acquire()
        try:
            return await self.environment.turns.wait(walk, lambda: wait_in_turn(next_slice()))
        finally:
            if holds_lock:
                self._walking.release()
