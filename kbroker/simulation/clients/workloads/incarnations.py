"""A topic that is deleted and created again under the same name: its history ends with the deletion.

Each topic id is an incarnation of the name. Clients name the topic by its id, so it is known which incarnation a record
belongs to. The topic loses nothing in a crash (see `RecreatedTopic`).
"""

from collections.abc import Iterable, Mapping, Sequence

# The committed offset of a partition without one.
NO_OFFSET = -1


class BrokenDeletion(AssertionError):
    """A deletion that was acknowledged has no effect, or records of the topic that came after it are wrong."""


class Incarnation:
    """What clients know of a topic id. Methods raise BrokenDeletion.

    `after_deletion`: whether the request was sent after the deletion had been acknowledged.
    """

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.is_deleted = False
        self._sent: set[int] = set()
        # By offset: the values that were acknowledged, and these and the ones that were read.
        self._acknowledged: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._committed: set[int] = {NO_OFFSET}

    @property
    def acknowledged(self) -> Mapping[int, int]:
        """A copy of the acknowledged values by offset."""
        return dict(self._acknowledged)

    def send(self, values: Iterable[int]) -> None:
        self._sent.update(values)

    def acknowledge(self, base_offset: int, values: Sequence[int], *, after_deletion: bool) -> None:
        if after_deletion:
            raise self._broken(f"values {list(values)} were acknowledged after the deletion")
        records = list(enumerate(values, base_offset))
        self._learn(records)
        self._acknowledged.update(records)

    def read(self, records: Sequence[tuple[int, int]], *, after_deletion: bool) -> None:
        """Check (offset, value) pairs that a fetch returned."""
        if records and after_deletion:
            raise self._broken(f"offset {records[0][0]} was read after the deletion")
        for offset, value in records:
            if value not in self._sent:
                raise self._broken(f"offset {offset} has value {value}, which was sent to another topic id")
        self._learn(records)

    def check_log(self, records: Sequence[tuple[int, int]], acknowledged: Mapping[int, int]) -> None:
        """Check the records of the whole log. `acknowledged`: the values that were acknowledged before it was read."""
        self.read(records, after_deletion=False)
        if records and records[0][0] != 0:
            raise self._broken(f"the log begins at offset {records[0][0]}")
        if lost := acknowledged.items() - set(records):
            raise self._broken(f"acknowledged (offset, value) pairs are lost: {sorted(lost)}")

    def commit(self, offset: int) -> None:
        """Record that a group is about to commit this offset, which no other commit has."""
        self._committed.add(offset)

    def read_committed(self, offset: int) -> None:
        if offset not in self._committed:
            raise self._broken(f"the committed offset {offset} is that of another topic id")

    def _learn(self, records: Iterable[tuple[int, int]]) -> None:
        for offset, value in records:
            if self._known.setdefault(offset, value) != value:
                raise self._broken(f"offset {offset} has the values {self._known[offset]} and {value}")

    def _broken(self, what: str) -> BrokenDeletion:
        return BrokenDeletion(f"topic id {self.topic_id.hex()}: {what}")
