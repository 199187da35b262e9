"""What takes over the appends of clients to a partition, on topics that opted in: kbroker/queues/ implements it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from kbroker.common import Buffer
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch
from kbroker.replica.produce.record_validator import AppendMustWait, RecordValidator
from kbroker.storage.log.control_batches import PreparedBatch
from protocol.records.batch import BatchHeader

# (base offset, end offset, log append time in ms or -1), as Partition.append_as_leader returns it.
AppendResult = tuple[int, int, int]


class AppendExtension(Protocol):
    """The extension of one partition in one leader epoch. Partitions are `Partition`."""

    @property
    def is_ready(self) -> bool:
        """Whether appends may begin: the state that is derived from the log is loaded."""
        ...

    async def wait_until_ready(self) -> None:
        """Wait until `is_ready`. Raises KafkaError(NOT_LEADER_OR_FOLLOWER) when the leadership ends before."""
        ...

    def inspect(self, body: Buffer, header: BatchHeader) -> Generator[None, None, object]:
        """Walk the decompressed records of a valid batch, and return what `append` needs to know of them.

        Yields after each slice. It may see a batch that is never appended, so it changes nothing. Raises KafkaError.
        """
        ...

    def append(self, partition: Any, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        """Append the batch, or others instead (`Partition.append_batches`), and return what the client is told.

        The sequence of an idempotent producer was checked. `stored`: that producer has sent the batch before, and this
        was the offset of what was stored then; nothing may be appended. Raises KafkaError, and NeedsRewrite.
        """
        ...

    def on_markers(self, partition: Any, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        """Called after transaction markers were appended, from `base_offset` on; also before the state is loaded."""
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
