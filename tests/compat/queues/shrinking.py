"""Closes partitions of a topic, as `kbroker topics alter NAME --partitions N` does."""

from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse
from tests.compat.broker_connection import BrokerConnection

# Outcomes.
REMOVED, CLOSING = 0, 1


def shrink(bootstrap: str, topic: str, count: int = 1) -> int:
    """Leave `count` partitions of a topic. Returns the outcome: the others are removed at once, or closing."""
    with BrokerConnection(bootstrap) as connection:
        request = RemovePartitionsRequest(topic_name=topic, partition_count=count)
        response = connection.request(request, 0, RemovePartitionsResponse)
    assert response.error_code == 0, response
    return response.outcome
