"""Offsets that open transactions have written. They take effect only if the transactions commit (KIP-98)."""

from collections.abc import Iterable, Mapping

from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey

_NONE: Mapping[tuple[str, int], object] = {}


class PendingTransactionalOffsets:
    """The pending offsets of one partition of __consumer_offsets, of many groups and producers."""

    __slots__ = ("_by_producer", "_producers")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, OffsetAndMetadata]] = {}
        # The producers with a pending offset, by group and (topic, partition).
        self._producers: dict[str, dict[tuple[str, int], dict[int, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def put(self, producer_id: int, key: OffsetKey, offset: OffsetAndMetadata) -> None:
        self._by_producer.setdefault(producer_id, {})[key] = offset
        partitions = self._producers.setdefault(key.group_id, {})
        partitions.setdefault((key.topic, key.partition), {})[producer_id] = None

    def remove(self, key: OffsetKey) -> None:
        """Remove the pending offsets of a partition, so that its transactions cannot restore them."""
        for producer_id in list(self._producers.get(key.group_id, {}).get((key.topic, key.partition), ())):
            offsets = self._by_producer[producer_id]
            del offsets[key]
            if not offsets:
                del self._by_producer[producer_id]
            self._remove_producer(key, producer_id)

    def pop(self, producer_id: int) -> dict[OffsetKey, OffsetAndMetadata]:
        """Remove and return the offsets of a transaction, which has ended."""
        offsets = self._by_producer.pop(producer_id, {})
        for key in offsets:
            self._remove_producer(key, producer_id)
        return offsets

    def partitions(self, group_id: str) -> Iterable[tuple[str, int]]:
        """Return the (topic, partition)s of a group that have pending offsets."""
        return self._producers.get(group_id, _NONE).keys()

    def group_ids(self) -> Iterable[str]:
        return self._producers.keys()

    def _remove_producer(self, key: OffsetKey, producer_id: int) -> None:
        partitions, partition = self._producers[key.group_id], (key.topic, key.partition)
        producers = partitions[partition]
        del producers[producer_id]
        if not producers:
            del partitions[partition]
            if not partitions:
                del self._producers[key.group_id]
