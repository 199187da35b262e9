"""Closes partitions of a topic, as `kbroker topics alter NAME --partitions N` does."""

from protocol.errors import ErrorCode
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse
from tests.compat.broker_connection import BrokerConnection
from tests.compat.support import eventually

# Outcomes.
REMOVED, CLOSING = 0, 1


def shrink(bootstrap: str, topic: str, count: int = 1) -> int:
    """Leave `count` partitions of a topic. Returns the outcome: the others are removed at once, or closing."""
    response = _request(bootstrap, topic, count)
    assert response.error_code == 0, response
    return response.outcome


def remove_emptied(bootstrap: str, topic: str, count: int = 1) -> None:
    """Remove closing partitions without records. The broker, which looks at them every 10 s, may be first."""

    def is_removed() -> bool:
        response = _request(bootstrap, topic, count)
        if response.error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS:
            return False
        if response.error_code != ErrorCode.INVALID_PARTITIONS:
            assert (response.error_code, response.outcome) == (0, REMOVED), response
        return True

    eventually(is_removed, f"{topic} has {count} partitions")


def _request(bootstrap: str, topic: str, count: int) -> RemovePartitionsResponse:
    with BrokerConnection(bootstrap) as connection:
        request = RemovePartitionsRequest(topic_name=topic, partition_count=count)
        return connection.request(request, 0, RemovePartitionsResponse)
