"""The topics to which groups subscribe: their ids, partitions and hashes, by name.

What follows from a topic is computed once, until topics change. The hash of a group's topics says whether its target
has to be computed again. It is stored with the group's epoch, and has Kafka's bytes (Utils.computeTopicHash,
computeGroupHash).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct, pack
from typing import NamedTuple, TypeVar

from kbroker.coordinator.group.topics import GroupTopic
from kbroker.coordinator.xxh3 import xxh3_64
from kbroker.runtime.turns import paced

T = TypeVar("T")

# Sets of names whose ids and hashes are remembered. Most members of a group have the same subscription.
MAX_REMEMBERED = 256
_MAGIC = b"\0"
_INT = Struct("<i").pack
_SIGN = 1 << 63


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
        self._hashes: dict[frozenset[str], int] = {}

    def forget(self) -> None:
        """Compute everything again: topics have changed."""
        # Computations pause: one that has begun before stores its result where nobody finds it.
        self._topics, self._ids, self._hashes = {}, {}, {}

    def hash(self, names: Iterable[str]) -> int:
        """Return the hash of the topics that exist, which changes with any of them."""

        def compute(names: frozenset[str]) -> int:
            return group_hash({name: topic.hash for name, topic in self.existing(names)})

        return _remembered(self._hashes, frozenset(names), compute)

    def ids(self, names: frozenset[str]) -> frozenset[bytes]:
        """Return the ids of the topics that exist."""
        return _remembered(
            self._ids, names, lambda names: frozenset(topic.topic_id for _, topic in self.existing(names))
        )

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


def _remembered(known: dict[frozenset[str], T], names: frozenset[str], compute: Callable[[frozenset[str]], T]) -> T:
    found = known.get(names)
    if found is None:
        found = compute(names)
        if len(known) >= MAX_REMEMBERED:
            known.clear()
        known[names] = found
    return found


def topic_hash(topic_id: bytes, name: str, racks: Sequence[Iterable[str]]) -> int:
    """Return the hash of a topic. `racks` has, for each partition, the racks of its replicas that have one."""
    # Words are little-endian, but the id is two of them.
    parts = [_MAGIC, topic_id[7::-1], topic_id[:7:-1], _string(name), _INT(len(racks))]
    for partition, partition_racks in enumerate(paced(racks)):
        parts.append(_INT(partition))
        for rack in sorted(partition_racks):
            # Both the caller and the hash of a string add the length.
            string = _string(rack)
            parts += (string[-4:], string)
    return xxh3_64(b"".join(parts))


def _string(text: str) -> bytes:
    units = text.encode("utf-16-le", "surrogatepass")
    return units + _INT(len(units) // 2)


def group_hash(hashes: Mapping[str, int]) -> int:
    """Return the signed hash of topics, by name; 0 if there are none. Topics that do not exist are left out."""
    if not hashes:
        return 0
    value = xxh3_64(pack(f"<{len(hashes)}Q", *(hashes[name] for name in sorted(hashes))))
    return value - (value & _SIGN) * 2
