"""Removes partitions of topics that have more than `kbroker topics alter --partitions` names."""

from collections.abc import Mapping
from typing import Any

from protocol.errors import ErrorCode


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
    return {"name": result["name"], "error_code": response.error_code, "error_message": response.error_message}
