"""What consumers see of the batches of which all records were duplicates: their position moves on."""

from kbroker.common import Buffer
from protocol.records.batch import BatchHeader


class EmptyBatchFilter:
    """A ReadFilter that drops batches without records.

    The batch that then moves the position is one that all clients follow: KafkaJS 2.2 stays in front of a batch without
    records at the end of a log, and fetches it again without a pause.
    """

    __slots__ = ()

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        return batch if header.count else None


EMPTY_BATCHES = EmptyBatchFilter()
