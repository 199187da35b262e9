"""The interface through which kbroker/queues/ adds features to partitions, and appends through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kbroker.common import Buffer, KafkaError
from kbroker.replica.partition_high_watermark import PartitionHighWatermark
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch, invalid_record
from kbroker.replica.produce.record_validator import AppendMustWait, RecordValidator, inspect_small
from kbroker.storage.log.transaction_index import PreparedBatch
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader


class PartitionExtensions(Protocol):
    """Implemented by kbroker/queues/."""

    def configure(self, partition: Any) -> None:
        """Set the append extension and the read filter of a `Partition`, as its topic's configs and its role require.

        Called when the partition is added, before it has a role; after each change of its topic's configs; when it
        begins a leader epoch, before any append; when it no longer leads; and when it was closed.
        """
        ...


# (base offset, end offset, log append time in ms or -1), as Partition.append_as_leader returns it.
AppendResult = tuple[int, int, int]


class AppendExtension(Protocol):
    """The extension of one partition in one leader epoch. `partition` is always that `Partition`."""

    @property
    def is_ready(self) -> bool:
        """Whether appends may begin, because the state that is derived from the log is loaded."""
        ...

    async def wait_until_ready(self) -> None:
        """Wait until `is_ready`. Raises KafkaError(NOT_LEADER_OR_FOLLOWER) when the leadership ends before."""
        ...

    def inspect(self, body: Buffer, header: BatchHeader, pause: Callable[[], None]) -> object:
        """Walk the decompressed records of a valid batch. Returns what `append` needs: InspectedBatch.inspection.

        Calls `pause` after each slice. The batch may never be appended, so this changes no state. Raises KafkaError.
        """
        ...

    def append(self, partition: Any, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        """Append the batch, or others instead, with `Partition.append_batches`. Returns the result for the client.

        The sequence of an idempotent producer is already checked. `stored`: the batch is a duplicate, and this is the
        result of the original; nothing may be appended. Raises KafkaError, and NeedsRewrite.
        """
        ...

    def on_markers(self, partition: Any, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        """Called after transaction markers were appended at `base_offset`, even before the state is loaded."""
        ...


class NeedsLoadedState(AppendMustWait):
    """The state that an append extension derives from the log is not loaded yet."""

    def __init__(self, extension: AppendExtension, validated: ValidatedBatch | InspectedBatch | None) -> None:
        super().__init__("the state of the partition is being loaded")
        self._extension = extension
        self._validated = validated

    async def wait(self, validator: RecordValidator) -> ValidatedBatch | InspectedBatch | None:
        await self._extension.wait_until_ready()
        return self._validated


# The decision usually takes some milliseconds. Clients wait at least 30 s for a response.
MAX_WAIT_S = 5.0


class NeedsClosingDecision(AppendMustWait):
    """A closing partition refuses records until it is removed or open again. The append waits for that.

    Every client retries a refused append. But if one batch of a request is refused, KafkaJS 2.2 sends all of them
    again, and chooses new partitions for records without a key. So a batch that was stored returns with other records,
    and is out of sequence. `wait` raises NOT_LEADER_OR_FOLLOWER if the partition still refuses records after
    MAX_WAIT_S.
    """

    def __init__(self, partition: PartitionHighWatermark, validated: ValidatedBatch | InspectedBatch | None) -> None:
        super().__init__("the partition is closing")
        self._partition = partition
        self._validated = validated

    async def wait(self, validator: RecordValidator) -> ValidatedBatch | InspectedBatch | None:
        loop = validator.environment.loop
        decided = loop.create_future()

        def wake() -> None:
            if not decided.done():
                decided.set_result(None)

        self._partition.add_closing_listener(wake)
        timer = loop.call_later(MAX_WAIT_S, wake)
        try:
            await decided
        finally:
            timer.cancel()
            self._partition.remove_closing_listener(wake)
        if self._partition.is_closing:
            # Clients refresh their metadata and retry.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._validated


def append_extended(
    partition: PartitionHighWatermark,
    extension: AppendExtension,
    records: memoryview | None,
    produce_version: int,
    now_ms: int,
    transactional: bool,
    guard: VerificationGuard | None,
    must_verify: bool,
    validated: ValidatedBatch | InspectedBatch | None,
) -> AppendResult:
    """Validate and inspect the batch of a client, and let the extension append it.

    Parameters, result and errors are those of Partition.append_as_leader.
    """
    log = partition.log
    if not extension.is_ready:
        raise NeedsLoadedState(extension, validated)
    if validated is None:
        validated = validate_batch(records, log.config, now_ms, produce_version, transactional)
    if isinstance(validated, InspectedBatch) and validated.inspect != extension.inspect:
        # The topic's configs have changed meanwhile: inspect the batch again.
        validated = validated.validated
    if not isinstance(validated, InspectedBatch):
        if validated[1].is_hidden:
            raise invalid_record("Clients are not allowed to write hidden batches.")
        validated = inspect_small(validated, extension.inspect, log.config)
    _, header, _ = validated.validated
    stored = None
    if header.producer_id >= 0:
        duplicate = log.producers.check(header, guard, must_verify)
        if duplicate is not None:
            base_offset, last_offset, append_time_ms = duplicate
            stored = base_offset, last_offset + 1, append_time_ms
    return extension.append(partition, validated, stored, now_ms)
