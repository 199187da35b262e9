"""What all commands about topics show of a topic."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kbroker.cli.common.client import chunks

# As in kbroker.config, which a command imports only if it needs more of it.
VIEW_OF = "kbroker.view.of"
MAX_RESOURCES = 1000  # per request


def topic_id_text(topic_id: Any) -> str:
    """Return a topic id as Kafka's tools print it: URL-safe base64 without padding."""
    data = topic_id.bytes if isinstance(topic_id, UUID) else UUID(str(topic_id)).bytes
    return urlsafe_b64encode(data).decode().rstrip("=")


def view_sources(client: Any, topics: Sequence[str]) -> dict[str, str]:
    """Return the source of each of the topics that is a view."""
    from kafka.admin import ConfigResource, ConfigResourceType

    sources: dict[str, str] = {}
    for chunk in chunks(topics, MAX_RESOURCES):
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic, {VIEW_OF: None}) for topic in chunk]
        for rows in client.describe_configs(resources, config_filter="all").values():
            sources.update({topic: row[VIEW_OF]["value"] for topic, row in rows.items() if VIEW_OF in row})
    return {topic: source for topic, source in sources.items() if source}


def topic_summary(topic: Mapping[str, Any], view_of: str | None) -> dict[str, Any]:
    """Return the JSON of a topic in a Metadata response, without its partitions. `view_of`: the source of a view."""
    partitions = topic["partitions"]
    return {
        "name": topic["name"],
        "topic_id": topic_id_text(topic["topic_id"]),
        "internal": topic["is_internal"],
        **({} if view_of is None else {"view_of": view_of}),
        "partitions": len(partitions),
        "replication_factor": max((len(partition["replica_nodes"]) for partition in partitions), default=0),
    }
