"""Removes partitions of topics that have more than `kbroker topics alter --partitions` names."""

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli.common.formatting import count_text

# The outcomes of RemovePartitions.
CLOSING, REOPENED = 1, 2


def change_partitions(client: Any, topics: Sequence[str], partitions: int) -> list[Mapping[str, Any]]:
    """Add partitions to the topics that have fewer, and remove them from the others. Returns the results in order."""
    counts = {topic["name"]: len(topic["partitions"]) for topic in client.describe_topics(list(topics))}
    results: dict[str, Mapping[str, Any]] = {}
    for name in topics:
        removed = _remove(client, name, partitions) if counts.get(name, 0) >= partitions else None
        if removed is not None:
            results[name] = removed
    # Brokers of Apache Kafka refuse the removal with a reason here.
    others = dict.fromkeys([name for name in topics if name not in results], partitions)
    if others:
        response = client.create_partitions(others, raise_errors=False).to_dict()
        results.update({result["name"]: result for result in response["results"]})
    return [results[name] for name in topics]


def _remove(client: Any, topic: str, partitions: int) -> Mapping[str, Any] | None:
    """Return the result of removing partitions; None from a broker of Apache Kafka, which disconnects."""
    from kafka.errors import KafkaError

    from kbroker.cli.cluster.plans.broker_message import send_message
    from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

    request = RemovePartitionsRequest(topic_name=topic, partition_count=partitions)
    try:
        response = send_message(client, request, RemovePartitionsResponse)
    except KafkaError:
        return None
    return {
        "name": topic,
        "error_code": response.error_code,
        "error_message": response.error_message,
        "outcome": response.outcome,
    }


def outcome_text(result: Mapping[str, Any], partitions: int) -> str:
    """Return what `kbroker topics alter --partitions` has done."""
    if result.get("outcome") == CLOSING:
        return (
            f"the partitions from {partitions} on are closing: new records go to the others. They are removed when "
            "retention has emptied them"
        )
    if result.get("outcome") == REOPENED:
        return f"all {count_text(partitions, 'partition')} are open again"
    return f"now has {count_text(partitions, 'partition')}"


def first_closing(client: Any, topic: str) -> int | None:
    """Return the lowest partition of a topic that is closing; None if none is, or the broker is Apache Kafka."""
    from kafka.errors import KafkaError

    from kbroker.cli.cluster.plans.broker_message import send_message
    from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

    try:
        response = send_message(
            client, RemovePartitionsRequest(topic_name=topic, partition_count=-1), RemovePartitionsResponse
        )
    except KafkaError:
        return None
    return None if response.error_code or response.first_closing < 0 else response.first_closing
