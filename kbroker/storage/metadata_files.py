"""Files with facts about a directory: its cluster, broker or topic, and whether the last shutdown was clean.

meta.properties is Apache Kafka's, version 1: the cluster and broker of a data directory. partition.metadata, as Kafka
writes it, has the topic id of a partition's directory.

.kafka_cleanshutdown exists if the last shutdown closed every log of the data directory. It contains the broker epoch of
that process (KIP-966). If it is the latest one that the controller knows, the logs have everything that the broker has
acknowledged. It also says that the process has written transaction-index-checkpoint: versions that do not write it
leave none, which is then no loss.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.common import uuid_text
from kbroker.runtime.disk import Disk
from kbroker.storage.file_names import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA

_VERSION = "1"


class MetaProperties(NamedTuple):
    """The ids of the cluster, the broker and the directory. Kafka's UUIDs have 22 characters."""

    cluster_id: str
    node_id: int
    directory_id: str


def encode_meta_properties(properties: MetaProperties) -> bytes:
    fields = {
        "cluster.id": properties.cluster_id,
        "directory.id": properties.directory_id,
        "node.id": str(properties.node_id),
        "version": _VERSION,
    }
    return "".join(f"{name}={value}\n" for name, value in fields.items()).encode()


def decode_meta_properties(data: bytes) -> MetaProperties:
    """Decode the file. Raises ValueError if it is damaged. A missing directory id (Kafka before 3.7) is empty."""
    fields = _parse_java_properties(data.decode("utf-8"))
    if fields.get("version") != _VERSION:
        raise ValueError(f"unknown version {fields.get('version')}")
    missing = [name for name in ("cluster.id", "node.id") if not fields.get(name)]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    return MetaProperties(fields["cluster.id"], int(fields["node.id"]), fields.get("directory.id", ""))


def _parse_java_properties(text: str) -> Mapping[str, str]:
    """Parse the subset of the format that these files use: a line per pair, and comments."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_meta_properties(disk: Disk, data_dir: str) -> MetaProperties | None:
    """Return the file's content; None if no broker has used the directory. Raises ValueError if the file is damaged."""
    try:
        data = disk.read(f"{data_dir}/{META_PROPERTIES}")
    except FileNotFoundError:
        return None
    return decode_meta_properties(data)


def write_meta_properties(disk: Disk, data_dir: str, properties: MetaProperties) -> None:
    disk.write_atomic(f"{data_dir}/{META_PROPERTIES}", encode_meta_properties(properties))


_ID_BYTES = 16


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
    text = f"version: 0\ntopic_id: {uuid_text(topic_id)}"
    disk.write_atomic(f"{directory}/{PARTITION_METADATA}", text.encode())


NO_BROKER_EPOCH = -1


def read_clean_broker_epoch(disk: Disk, data_dir: str) -> int:
    """Return the broker epoch of the last process if its shutdown was clean; -1 if it was not, or it is unknown."""
    try:
        epoch = json.loads(disk.read(f"{data_dir}/{CLEAN_SHUTDOWN}"))["brokerEpoch"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return NO_BROKER_EPOCH
    return epoch if type(epoch) is int else NO_BROKER_EPOCH


def has_written_transaction_indexes(disk: Disk, data_dir: str) -> bool:
    """Return whether the last process has written transaction-index-checkpoint, as far as the file says."""
    try:
        return json.loads(disk.read(f"{data_dir}/{CLEAN_SHUTDOWN}"))["transactionIndexes"] is True
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def consume_clean_shutdown_file(disk: Disk, data_dir: str) -> bool:
    """Return whether the last shutdown was clean, and remove the file durably: after a crash it must not exist."""
    path = f"{data_dir}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return False
    disk.unlink(path)
    disk.sync_dir(data_dir)
    return True


def write_clean_shutdown_file(disk: Disk, data_dir: str, broker_epoch: int) -> None:
    """Write the file durably. Call it only when every log of the directory was closed without an error."""
    text = f'{{"version":0,"brokerEpoch":{broker_epoch},"transactionIndexes":true}}'
    disk.write_atomic(f"{data_dir}/{CLEAN_SHUTDOWN}", text.encode())
