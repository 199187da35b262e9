"""partition.metadata: the topic id of a partition's directory, as Kafka writes it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

from kbroker.runtime.disk import Disk
from kbroker.storage.file_names import PARTITION_METADATA

_ID_BYTES = 16


def encode_topic_id(topic_id: bytes) -> str:
    """Return a UUID of 16 bytes as Kafka prints it: URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """Return the topic id; None if the file is missing or damaged, in which case it may be written again."""
    try:
        return decode_topic_id(disk.read(f"{directory}/{PARTITION_METADATA}"))
    except FileNotFoundError:
        return None


def decode_topic_id(data: bytes) -> bytes | None:
    """Return the topic id in the contents of the file; None if they are damaged."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode().split("\n"))
        topic_id = urlsafe_b64decode(fields["topic_id"] + "==")
    except (ValueError, KeyError):
        return None
    return topic_id if len(topic_id) == _ID_BYTES else None


def write_topic_id(disk: Disk, directory: str, topic_id: bytes) -> None:
    """Write the topic id durably.

    As in Kafka, it is written before the first record: a new topic with the name of a deleted one must not get its
    records.
    """
    text = f"version: 0\ntopic_id: {encode_topic_id(topic_id)}"
    disk.write_atomic(f"{directory}/{PARTITION_METADATA}", text.encode())
