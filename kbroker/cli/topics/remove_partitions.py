"""Removes partitions of topics that have more than `kbroker topics alter --partitions` names."""

from collections.abc import Mapping
from typing import Any

from kbroker.cli.common.formatting import count_text
from protocol.errors import ErrorCode

# The outcomes of RemovePartitions.
CLOSING, REOPENED = 1, 2


def remove_instead(client: Any, result: Mapping[str, Any], partitions: int) -> Mapping[str, Any]:
    """Return the result of removing partitions, if CreatePartitions was refused because the topic has that many.

    Brokers of Apache Kafka do not know the request and disconnect: then their refusal remains the result.
    """
    if result["error_code"] != ErrorCode.INVALID_PARTITIONS:
        return result
    from kafka.errors import KafkaError

    from kbroker.cli.cluster.plans.broker_message import send_message
    from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

    request = RemovePartitionsRequest(topic_name=result["name"], partition_count=partitions)
    try:
        response = send_message(client, request, RemovePartitionsResponse)
    except KafkaError:
        return result
    return {
        "name": result["name"],
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
