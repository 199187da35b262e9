"""What all commands about topics show of a topic."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from uuid import UUID


def topic_id_text(topic_id: Any) -> str:
    """Return a topic id as Kafka's tools print it: URL-safe base64 without padding."""
    data = topic_id.bytes if isinstance(topic_id, UUID) else UUID(str(topic_id)).bytes
    return urlsafe_b64encode(data).decode().rstrip("=")


def topic_summary(topic: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a topic in a Metadata response, without its partitions."""
    partitions = topic["partitions"]
    return {
        "name": topic["name"],
        "topic_id": topic_id_text(topic["topic_id"]),
        "internal": topic["is_internal"],
        "partitions": len(partitions),
        "replication_factor": max((len(partition["replica_nodes"]) for partition in partitions), default=0),
    }
