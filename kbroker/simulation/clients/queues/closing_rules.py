"""What consumers may see of a topic whose partitions close: each record in one place, in the order of its producer."""

from collections.abc import Iterable, Sequence

from kbroker.simulation.clients.queues.queue_rules import BrokenQueue, SeenRecord

# A producer, and the partition to which it has sent.
Stream = tuple[int, int]


class ForwardedRecords:
    """The records that idempotent and transactional producers sent, and where consumers have seen them.

    A record stays where it was seen once, so that records which are deleted later count too.
    """

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._acknowledged: set[int] = set()
        self._aborted: set[int] = set()
        # The records of transactions whose outcome is unknown.
        self._unknown: list[frozenset[int]] = []
        # By value: partition and offset.
        self._seen: dict[int, tuple[int, int]] = {}

    def send(self, values: Iterable[int], stream: Stream) -> None:
        self._streams.update(dict.fromkeys(values, stream))

    def acknowledge(self, values: Iterable[int]) -> None:
        self._acknowledged.update(values)

    def abort(self, values: Iterable[int]) -> None:
        """Record that the transaction of these records was, or will be, aborted.

        Raises BrokenQueue if a consumer has seen one of them.
        """
        self._aborted.update(values)
        seen = self._aborted & self._seen.keys()
        if seen:
            raise BrokenQueue(f"the values {sorted(seen)[:10]} were read, and then aborted")

    def end_unknown(self, values: Iterable[int]) -> None:
        """Record that a transaction has an unknown outcome: consumers see all of its records, or none."""
        self._unknown.append(frozenset(values))

    def read(self, index: int, records: Iterable[SeenRecord]) -> None:
        """Remember what a consumer of committed records has read.

        Raises BrokenQueue if a record was not sent, was aborted, or is there twice.
        """
        for record in records:
            if record.value not in self._streams:
                raise BrokenQueue(f"offset {record.offset} of partition {index} has {record.value}, which was not sent")
            if record.value in self._aborted:
                raise BrokenQueue(f"offset {record.offset} of partition {index} has {record.value}, which was aborted")
            place = index, record.offset
            first = self._seen.setdefault(record.value, place)
            if first != place:
                raise BrokenQueue(f"value {record.value} is there twice: (partition, offset) {first} and {place}")

    def is_complete(self) -> bool:
        """Return whether consumers have seen all acknowledged and committed records, and no part of a transaction."""
        seen = self._seen.keys()
        return self._acknowledged <= seen and all(values <= seen or not values & seen for values in self._unknown)

    def check_order(self, log: Sequence[SeenRecord]) -> None:
        """Check one partition: what a producer has sent to one partition is in order. Raises BrokenQueue."""
        last: dict[Stream, SeenRecord] = {}
        for record in log:
            stream = self._streams[record.value]
            before = last.get(stream)
            if before is not None and before.value > record.value:
                raise BrokenQueue(f"{record} of {stream} is behind {before}")
            last[stream] = record
