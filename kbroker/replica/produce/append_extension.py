"""The interface that replaces the appends of clients to a partition; kbroker/queues/ implements it for some topics."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from kbroker.common import Buffer
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch
from kbroker.replica.produce.record_validator import AppendMustWait, RecordValidator
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import BatchHeader

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

    def inspect(self, body: Buffer, header: BatchHeader) -> Generator[None, None, object]:
        """Walk the decompressed records of a valid batch. Returns what `append` needs: InspectedBatch.inspection.

        Yields after each slice. The batch may never be appended, so this changes no state. Raises KafkaError.
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
