"""meta.properties: the broker and cluster that a data directory belongs to. Apache Kafka's format, version 1."""

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.runtime.disk import Disk

FILE = "meta.properties"
VERSION = "1"


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
        "version": VERSION,
    }
    return "".join(f"{name}={value}\n" for name, value in fields.items()).encode()


def decode_meta_properties(data: bytes) -> MetaProperties:
    """Decode the file. Raises ValueError if it is damaged. A missing directory id (Kafka before 3.7) is empty."""
    fields = _parse_java_properties(data.decode("utf-8"))
    if fields.get("version") != VERSION:
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
        data = disk.read(f"{data_dir}/{FILE}")
    except FileNotFoundError:
        return None
    return decode_meta_properties(data)


def write_meta_properties(disk: Disk, data_dir: str, properties: MetaProperties) -> None:
    disk.write_atomic(f"{data_dir}/{FILE}", encode_meta_properties(properties))
