"""A client that may send anything, and the requests that the hostile tests need."""

from protocol.client import ClientConnection
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.records.batch import build_batch
from protocol.schema.message import Message
from tests.compat.broker_connection import BrokerConnection, ConnectionClosedError
from tests.compat.support import DEADLINE_S

NOW = 1_760_000_000_000
CREATE_TOPICS_VERSION = 7
PRODUCE_VERSION = 9


class RawClient(BrokerConnection):
    """A connection that the broker may close: `try_send` and `try_receive` return that instead of raising."""

    def __init__(self, bootstrap: str, client_id: str = "hostile", receive_buffer_bytes: int | None = None) -> None:
        super().__init__(bootstrap, client_id, DEADLINE_S, receive_buffer_bytes)

    def try_send(self, data: bytes | memoryview) -> bool:
        """Send bytes, and return false if the broker has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def try_receive(self) -> bytes | None:
        """Return the next frame without its size; None if the broker closes the connection."""
        try:
            return self.receive_frame()
        except ConnectionClosedError:
            return None


def framed(request: Message, version: int) -> bytes:
    """Encode a request as a frame."""
    return ClientConnection("hostile").send(request, version).frame


def produce_request(topic: str, records: bytes, acks: int = -1, partition: int = 0) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=records)]
    return ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def produce_batch(client: RawClient, topic: str, records: bytes) -> int:
    """Produce a batch, and return the error code."""
    response = client.request(produce_request(topic, records), PRODUCE_VERSION, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def produce_record(client: RawClient, topic: str, partition: int, size: int = 100) -> ErrorCode:
    """Produce one record of `size` bytes, and return the error code."""
    batch = bytes(build_batch([(NOW, None, bytes(size), ())]))
    response = client.request(produce_request(topic, batch, partition=partition), PRODUCE_VERSION, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def end_offset(client: RawClient, topic: str, partition: int) -> int:
    """Return the high watermark in the response to a Fetch from offset 0."""
    fetched = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1_000_000)
    topics = [FetchTopic(topic=topic, partitions=[fetched])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1_000_000, topics=topics)
    part = client.request(request, 11, FetchResponse).responses[0].partitions[0]
    assert part.error_code == 0, ErrorCode(part.error_code)
    assert part.records
    return part.high_watermark


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, error: ErrorCode = ErrorCode.NONE, **configs: object
) -> None:
    """Create a topic; config names have underscores for dots. `error`: the code of the response."""
    rows = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
    with RawClient(bootstrap, "setup") as client:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        response = client.request(request, CREATE_TOPICS_VERSION, CreateTopicsResponse)
    assert response.topics[0].error_code == error, response
