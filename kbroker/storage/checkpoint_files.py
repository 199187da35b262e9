"""The small text files: offset checkpoints, leader epochs, partition metadata, the mark of a clean stop.

Their formats are Apache Kafka's. A file that cannot be understood raises ValueError; the caller decides what its
loss means (recovery reads more, epochs are rebuilt from the log).
"""

from collections.abc import Iterable, Mapping

from kbroker.common import TopicPartition
from kbroker.runtime.disk import Disk


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Version 0: the count, then `topic partition offset` a line."""
    lines = ["0", str(len(offsets))]
    lines.extend(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    offsets = {}
    for line in _entries(data):
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
        if not 0 <= int(offset) < 1 << 63:
            raise ValueError(f"offset {offset} of {topic}-{partition}")
    return offsets


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Version 0 of leader-epoch-checkpoint: the count, then `epoch start-offset` a line."""
    lines = [f"{epoch} {start}" for epoch, start in entries]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    entries = []
    for line in _entries(data):
        epoch, start = line.split(" ")
        entries.append((int(epoch), int(start)))
    if entries != sorted(entries) or entries != sorted(entries, key=lambda entry: entry[1]):
        raise ValueError("leader epochs out of order")
    return entries


def _entries(data: bytes) -> list[str]:
    """The lines after version and count, both of which must be right. An empty file has no entries, as in Kafka."""
    if not data:
        return []
    lines = data.decode("utf-8").split("\n")
    if lines[0] != "0":
        raise ValueError(f"unknown version {lines[0]!r}")
    if len(lines) == 1:
        raise ValueError("the count is missing")
    count = int(lines[1])
    if count < 0 or lines[2 + count :] != [""]:
        raise ValueError(f"{len(lines) - 3} entries where {count} are expected")
    return lines[2 : 2 + count]


def read_offsets(disk: Disk, data_dir: str, name: str) -> dict[TopicPartition, int]:
    """An offset checkpoint of a data directory; empty if there is none. Raises ValueError if it is damaged."""
    try:
        return decode_offsets(disk.read(f"{data_dir}/{name}"))
    except FileNotFoundError:
        return {}


def write_offsets(disk: Disk, data_dir: str, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint, durably."""
    disk.write_atomic(f"{data_dir}/{name}", encode_offsets(offsets))
