"""The read filter for batches whose records were all duplicates: drops them, and consumers continue after them."""

from kbroker.common import Buffer
from protocol.records.batch import BatchHeader


class EmptyBatchFilter:
    """A ReadFilter that drops batches without records.

    The reader of filtered batches then sends a batch that suits the client (`PositionForm`). As it is stored, kafka-go
    would rewind to offset 1, and KafkaJS 2.2 fetch it again and again.
    """

    __slots__ = ()

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return batch if header.count else None


EMPTY_BATCHES = EmptyBatchFilter()
