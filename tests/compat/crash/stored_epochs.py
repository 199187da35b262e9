"""Reads from a broker which producer, in which epoch, has written a record: clients do not show that."""

from typing import NamedTuple

from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.records.batch import iter_headers
from tests.compat.broker_connection import BrokerConnection

# The last version in which topics have names.
FETCH_VERSION = 12
METADATA_VERSION = 9


class StoredEpoch(NamedTuple):
    """The producer of a batch, and its epoch; both -1 without idempotence."""

    producer_id: int
    epoch: int


def stored_epoch(bootstrap: str, topic: str, partition: int, offset: int) -> StoredEpoch:
    """Return the producer of the batch with a record, from the partition's leader. Fails if there is no such batch."""
    with BrokerConnection(_leader(bootstrap, topic, partition)) as connection:
        rows = [FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1)]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=topic, partitions=rows)])
        found = connection.request(request, FETCH_VERSION, FetchResponse).responses[0].partitions[0]
    assert found.error_code == 0, f"error {found.error_code} at offset {offset} of {topic}-{partition}"
    for _, header in iter_headers(bytes(found.records or b"")):
        if header.base_offset <= offset <= header.last_offset:
            return StoredEpoch(header.producer_id, header.producer_epoch)
    raise AssertionError(f"no batch with offset {offset} of {topic}-{partition}")


def _leader(bootstrap: str, topic: str, partition: int) -> str:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    with BrokerConnection(bootstrap.split(",")[0]) as connection:
        response = connection.request(request, METADATA_VERSION, MetadataResponse)
    [leader] = [row.leader_id for row in response.topics[0].partitions if row.partition_index == partition]
    [broker] = [broker for broker in response.brokers if broker.node_id == leader]
    return f"{broker.host}:{broker.port}"
