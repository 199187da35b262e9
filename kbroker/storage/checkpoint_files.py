"""Checkpoint files: offsets by partition of a data directory, and the leader epochs of a log.

Their formats are Apache Kafka's. A damaged file raises ValueError, and the caller handles the loss: recovery reads more
of the log, leader epochs are rebuilt from the log.
"""

from collections.abc import Iterable, Mapping

from kbroker.common import TopicPartition
from kbroker.runtime.disk import Disk

_VERSION = "0"


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode an offset checkpoint: version, number of entries, then a line `topic partition offset` for each."""
    return _encode([f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    offsets = {}
    for line in _decode(data):
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
        if not 0 <= int(offset) < 1 << 63:
            raise ValueError(f"offset {offset} of {topic}-{partition}")
    return offsets


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Encode leader-epoch-checkpoint: version, number of entries, then a line `epoch start-offset` for each."""
    return _encode([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    entries = []
    for line in _decode(data):
        epoch, start = line.split(" ")
        entries.append((int(epoch), int(start)))
    if entries != sorted(entries) or entries != sorted(entries, key=lambda entry: entry[1]):
        raise ValueError("leader epochs out of order")
    return entries


def _encode(lines: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def _decode(data: bytes) -> list[str]:
    """Return the lines after the version and the number of entries. As in Kafka, an empty file has no entries."""
    if not data:
        return []
    lines = data.decode("utf-8").split("\n")
    if lines[0] != _VERSION:
        raise ValueError(f"unknown version {lines[0]!r}")
    if len(lines) == 1:
        raise ValueError("the number of entries is missing")
    count = int(lines[1])
    if count < 0 or lines[2 + count :] != [""]:
        raise ValueError(f"{len(lines) - 3} entries where {count} are expected")
    return lines[2 : 2 + count]


def read_offsets(disk: Disk, data_dir: str, name: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint of a data directory; empty if there is none. Raises ValueError if it is damaged."""
    try:
        return decode_offsets(disk.read(f"{data_dir}/{name}"))
    except FileNotFoundError:
        return {}


def write_offsets(
    disk: Disk, data_dir: str, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True
) -> None:
    """Replace an offset checkpoint, durably unless `sync` is False. Raises OSError."""
    disk.write_atomic(f"{data_dir}/{name}", encode_offsets(offsets), sync=sync)
