"""The read filter for batches whose records were all duplicates: drops them, and consumers continue after them."""

from kbroker.common import Buffer
from protocol.records.batch import BatchHeader


class EmptyBatchFilter:
    """A ReadFilter that drops batches without records.

    The reader of filtered batches then sends a control batch (`position_batch`), which moves the position of every
    client. KafkaJS 2.2 does not move past an empty batch at the end of a log, and fetches it again and again.
    """

    __slots__ = ()

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return batch if header.count else None


EMPTY_BATCHES = EmptyBatchFilter()
