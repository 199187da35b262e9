"""The interface through which kbroker/queues/ adds features to partitions, and what its appends wait for."""

from collections.abc import Callable, Sequence
from typing import Protocol

from kbroker.common import Buffer, KafkaError
from kbroker.replica.partition_high_watermark import PartitionHighWatermark
from kbroker.replica.produce.record_rules import InspectedBatch, ValidatedBatch
from kbroker.replica.produce.slow_validation import AppendMustWait, RecordValidator
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader

# (base offset, end offset, log append time in ms or -1), as Partition.append_as_leader returns it.
AppendResult = tuple[int, int, int]


class AppendExtension(Protocol):
    """The extension of one partition in one leader epoch."""

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

    def append(self, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        """Append the batch, or others instead, with `Partition.append_batches`. Returns the result for the client.

        The sequence of an idempotent producer is already checked. `stored`: the batch is a duplicate, and this is the
        result of the original; nothing may be appended. Raises KafkaError, and AppendMustWait.
        """
        ...

    def on_markers(self, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        """Called after transaction markers were appended at `base_offset`, even before the state is loaded."""
        ...


# The decision usually takes some milliseconds. Clients wait at least 30 s for a response.
MAX_WAIT_S = 5.0


def wait_until_loaded(extension: AppendExtension, validated: ValidatedBatch | InspectedBatch | None) -> AppendMustWait:
    """Return the error to raise while the state that an extension derives from the log is not loaded yet."""

    async def wait(validator: RecordValidator) -> ValidatedBatch | InspectedBatch | None:
        await extension.wait_until_ready()
        return validated

    return AppendMustWait("the state of the partition is being loaded", wait)


def wait_until_decided(
    partition: PartitionHighWatermark, validated: ValidatedBatch | InspectedBatch | None
) -> AppendMustWait:
    """Return the error to raise for a closing partition, which refuses records until it is removed or open again.

    Every client retries a refused append. But if one batch of a request is refused, KafkaJS 2.2 sends all of them
    again, and chooses new partitions for records without a key. So a batch that was stored returns with other records,
    and is out of sequence. The wait raises NOT_LEADER_OR_FOLLOWER if the partition still refuses records after
    MAX_WAIT_S.
    """

    async def wait(validator: RecordValidator) -> ValidatedBatch | InspectedBatch | None:
        loop = validator.environment.loop
        decided = loop.create_future()

        def wake() -> None:
            if not decided.done():
                decided.set_result(None)

        partition.add_closing_listener(wake)
        timer = loop.call_later(MAX_WAIT_S, wake)
        try:
            await decided
        finally:
            timer.cancel()
            partition.remove_closing_listener(wake)
        if partition.is_closing:
            # Clients refresh their metadata and retry.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return validated

    return AppendMustWait("the partition is closing", wait)
