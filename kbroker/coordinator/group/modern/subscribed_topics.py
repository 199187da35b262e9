"""The topics to which groups subscribe: their ids, partitions and hashes, by name.

What follows from a topic is computed once, until topics change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from kbroker.coordinator.group.modern.topic_hash import group_hash, topic_hash
from kbroker.coordinator.group.topics import GroupTopic
from kbroker.runtime.turns import paced

# Sets of names whose ids are remembered. Most members of a group have the same subscription.
MAX_REMEMBERED = 256


class KnownTopic(NamedTuple):
    topic_id: bytes
    partition_count: int
    hash: int


class SubscribedTopics:
    """`find` returns the metadata of a topic by its name, None if there is no such topic."""

    def __init__(self, find: Callable[[str], GroupTopic | None]) -> None:
        self._find = find
        self._topics: dict[str, KnownTopic] = {}
        self._ids: dict[frozenset[str], frozenset[bytes]] = {}

    def forget(self) -> None:
        """Compute everything again: topics have changed."""
        # Computations pause: one that has begun before stores its result where nobody finds it.
        self._topics, self._ids = {}, {}

    def hash(self, names: Iterable[str]) -> int:
        """Return the hash of the topics that exist, which changes with any of them."""
        return group_hash({name: topic.hash for name, topic in self.existing(names)})

    def ids(self, names: frozenset[str]) -> frozenset[bytes]:
        """Return the ids of the topics that exist."""
        known = self._ids
        ids = known.get(names)
        if ids is None:
            ids = frozenset(topic.topic_id for _, topic in self.existing(names))
            if len(known) >= MAX_REMEMBERED:
                known.clear()
            known[names] = ids
        return ids

    def partition_counts(self, names: Iterable[str]) -> Mapping[bytes, int]:
        """Return the number of partitions of the topics that exist, by topic id, in the order of their names."""
        return {topic.topic_id: topic.partition_count for _, topic in self.existing(names)}

    def existing(self, names: Iterable[str]) -> Iterator[tuple[str, KnownTopic]]:
        """Yield the topics that exist, with their names."""
        known = self._topics
        for name in paced(sorted(names)):
            topic = known.get(name)
            if topic is None:
                found = self._find(name)
                if found is None:
                    continue
                topic_id, partition_count, racks = found
                topic = known[name] = KnownTopic(topic_id, partition_count, topic_hash(topic_id, name, racks))
            yield name, topic
