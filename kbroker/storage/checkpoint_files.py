"""The small text files: offset checkpoints, leader epochs, partition metadata, the mark of a clean stop.

Their formats are Apache Kafka's. A file that cannot be understood raises ValueError; the caller decides what its
loss means (recovery reads more, epochs are rebuilt from the log).
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping

from kbroker.common import TopicPartition
from kbroker.runtime.disk import Disk
from kbroker.storage import names


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
        raise ValueError(f"{len(lines) - 3} entries where {count} were announced")
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


def encode_topic_id(topic_id: bytes) -> str:
    """A UUID of 16 bytes as Kafka prints it: URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """The topic id in partition.metadata, None if the file is absent or damaged (it can be written again)."""
    try:
        fields = dict(
            line.split(": ", 1) for line in disk.read(f"{directory}/{names.PARTITION_METADATA}").decode().split("\n")
        )
        topic_id = urlsafe_b64decode(fields["topic_id"] + "==")
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return topic_id if len(topic_id) == 16 else None


def write_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    """Durable before there are records, as in Kafka: those of a deleted topic must never be taken for another's."""
    text = f"version: 0\ntopic_id: {encode_topic_id(topic_id)}"
    disk.write_atomic(f"{directory}/{names.PARTITION_METADATA}", text.encode())


def take_clean_marker(disk: Disk, data_dir: str) -> bool:
    """Whether the last stop was clean. The mark is removed, so that a crash from now on is seen as one."""
    path = f"{data_dir}/{names.CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return False
    disk.unlink(path)
    disk.sync_dir(data_dir)
    return True


def write_clean_marker(disk: Disk, data_dir: str, broker_epoch: int) -> None:
    """Only when every log of the directory has been closed without an error."""
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    disk.write_atomic(f"{data_dir}/{names.CLEAN_SHUTDOWN}", text.encode())
