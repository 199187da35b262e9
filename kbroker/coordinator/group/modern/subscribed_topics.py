"""The topics to which groups subscribe: their ids, partitions and hashes, by name.

What follows from a topic is computed once, until topics change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.coordinator.group.modern.topic_hash import group_hash, topic_hash
from kbroker.runtime.turns import paced

# Sets of names whose ids are remembered. Most members of a group have the same subscription.
MAX_REMEMBERED = 256


class TopicMetadata(NamedTuple):
    """`racks`: for each partition, the racks of its replicas that have one."""

    topic_id: bytes
    partition_count: int
    racks: Sequence[Iterable[str]]


class SubscribedTopics:
    """`find` returns the metadata of a topic by its name, None if there is no such topic."""

    def __init__(self, find: Callable[[str], TopicMetadata | None]) -> None:
        self._find = find
        self._hashes: dict[str, int] = {}
        self._ids: dict[frozenset[str], frozenset[bytes]] = {}

    def forget(self) -> None:
        """Compute everything again: topics have changed."""
        self._hashes.clear()
        self._ids.clear()

    def hash(self, names: Iterable[str]) -> int:
        """Return the hash of the topics that exist, which changes with any of them."""
        hashes = {}
        for name in paced(names):
            known = self._hashes.get(name)
            if known is None:
                topic = self._find(name)
                if topic is None:
                    continue
                known = self._hashes[name] = topic_hash(topic.topic_id, name, topic.racks)
            hashes[name] = known
        return group_hash(hashes)

    def ids(self, names: frozenset[str]) -> frozenset[bytes]:
        """Return the ids of the topics that exist."""
        ids = self._ids.get(names)
        if ids is None:
            ids = frozenset(topic.topic_id for name in paced(names) if (topic := self._find(name)) is not None)
            if len(self._ids) >= MAX_REMEMBERED:
                self._ids.clear()
            self._ids[names] = ids
        return ids

    def partition_counts(self, names: Iterable[str]) -> Mapping[bytes, int]:
        """Return the number of partitions of the topics that exist, by topic id."""
        found = (self._find(name) for name in paced(names))
        return {topic.topic_id: topic.partition_count for topic in found if topic is not None}
