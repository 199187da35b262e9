"""Checkpoint files: offsets by partition of a data directory, and the leader epochs of a log.

Their formats are Apache Kafka's, except that of transaction-index-checkpoint, which Kafka does not have. A damaged file
raises ValueError, and the caller handles the loss: recovery reads more of the log, leader epochs and transaction
indexes are rebuilt from the log.
"""

from collections.abc import Iterable, Mapping

from kbroker.common import TopicPartition
from kbroker.runtime.disk import Disk

_VERSION = "0"

# The numbers of entries in the transaction indexes of a log, by the base offsets of the segments that have any.
IndexEntries = Mapping[int, int]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode an offset checkpoint: version, number of entries, then a line `topic partition offset` for each."""
    return _encode([f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Decode an offset checkpoint. Kafka reads an empty file as one without entries; it has lost its content."""
    offsets = {}
    for line in _decode(data):
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
        if not 0 <= int(offset) < 1 << 63:
            raise ValueError(f"offset {offset} of {topic}-{partition}")
    return offsets


def encode_index_entries(entries: Mapping[TopicPartition, IndexEntries]) -> bytes:
    """Encode transaction-index-checkpoint: as above, with lines `topic partition base-offset entries`."""
    return _encode(
        [
            f"{tp.topic} {tp.partition} {base_offset} {count}"
            for tp, by_segment in entries.items()
            for base_offset, count in by_segment.items()
        ]
    )


def decode_index_entries(data: bytes) -> dict[TopicPartition, IndexEntries]:
    """Decode transaction-index-checkpoint."""
    entries: dict[TopicPartition, dict[int, int]] = {}
    for line in _decode(data):
        topic, partition, base_offset, count = line.split(" ")
        entries.setdefault(TopicPartition(topic, int(partition)), {})[int(base_offset)] = int(count)
    return dict(entries)


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
    """Return the lines after the version and the number of entries."""
    if not data:
        raise ValueError("empty")
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
