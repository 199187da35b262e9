"""Offsets that transactions have written and that count only when these commit (KIP-98).

Of several commits of one partition the one that stands last in the log counts, a transaction's or not, whatever the
order in which the transactions end. So a commit that comes after a pending one overtakes it: the partition stays
pending, since who reads only what is stable has to wait for the end of the transaction, but its end changes nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey

Partition = tuple[str, int]


class PendingOffset(NamedTuple):
    """`place`: where its record is, as an offset in the partition of __consumer_offsets."""

    key: OffsetKey
    offset: OffsetAndMetadata
    place: int


class PendingOffsets:
    """The pending offsets of one partition of __consumer_offsets: of many groups and many producers."""

    __slots__ = ("_groups", "_producers")

    def __init__(self) -> None:
        # What each open transaction has written, by producer id; None where a later commit has overtaken it.
        self._producers: dict[int, dict[OffsetKey, PendingOffset | None]] = {}
        # By group and partition, whose transactions they are.
        self._groups: dict[str, dict[Partition, dict[int, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._producers)

    def add(self, producer_id: int, offset: PendingOffset) -> None:
        """A transaction has written an offset; later ones come at higher places."""
        key = offset.key
        self._producers.setdefault(producer_id, {})[key] = offset
        self._groups.setdefault(key.group_id, {}).setdefault((key.topic, key.partition), {})[producer_id] = None

    def overtake(self, key: OffsetKey, place: int | None = None) -> None:
        """A commit that counts stands at this place in the log; None: after all that is pending."""
        for producer_id in self._of(key):
            offsets = self._producers[producer_id]
            pending = offsets[key]
            if pending is not None and (place is None or pending.place < place):
                offsets[key] = None

    def forget(self, key: OffsetKey) -> None:
        """The offset is deleted, the pending ones with it: a commit of their transactions does not bring it back."""
        for producer_id in list(self._of(key)):
            offsets = self._producers[producer_id]
            del offsets[key]
            if not offsets:
                del self._producers[producer_id]
            self._remove(key, producer_id)

    def end(self, producer_id: int) -> list[PendingOffset]:
        """The producer's transaction has ended: gives what counts if it has committed."""
        offsets = self._producers.pop(producer_id, {})
        for key in offsets:
            self._remove(key, producer_id)
        return [pending for pending in offsets.values() if pending is not None]

    def of_group(self, group_id: str) -> Iterator[Partition]:
        """The partitions of which a group has pending offsets."""
        return iter(self._groups.get(group_id, ()))

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._groups.get(group_id, ())

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def _of(self, key: OffsetKey) -> dict[int, None]:
        group = self._groups.get(key.group_id)
        return {} if group is None else group.get((key.topic, key.partition), {})

    def _remove(self, key: OffsetKey, producer_id: int) -> None:
        group, partition = self._groups[key.group_id], (key.topic, key.partition)
        producers = group[partition]
        del producers[producer_id]
        if not producers:
            del group[partition]
            if not group:
                del self._groups[key.group_id]
