"""The hash of the topics that a group subscribes to, which says whether its target has to be computed again (pure).

The bytes are Kafka's (Utils.computeTopicHash, computeGroupHash): a group's hash is stored with its epoch (key 3).
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct, pack

from kbroker.coordinator.xxh3 import xxh3_64
from kbroker.runtime.turns import paced

_MAGIC = b"\0"
_INT = Struct("<i").pack
_SIGN = 1 << 63


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
