"""A client on a socket: sends raw bytes, or requests in the project's own codecs."""

import socket
from typing import TypeVar

from protocol.errors import ErrorCode
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.records.batch import build_batch
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message
from tests.compat.support import DEADLINE_S

M = TypeVar("M", bound=Message)

NOW = 1_760_000_000_000
CREATE_TOPICS_VERSION = 7
PRODUCE_VERSION = 9


class RawClient:
    """One connection."""

    def __init__(self, bootstrap: str, client_id: str = "hostile", receive_buffer: int | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.client_id = client_id
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes | memoryview) -> bool:
        """Send, and return false if the broker has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self, size: int) -> bytes:
        """Return `size` bytes, or fewer if the broker closes the connection."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                break
            data += part
        return bytes(data)

    def receive_response(self) -> bytes | None:
        """Return the next response without its size; None if the broker closes the connection."""
        head = self.receive(4)
        if len(head) < 4:
            return None
        size = int.from_bytes(head, "big")
        body = self.receive(size)
        assert len(body) == size, "closed within a response"
        return body

    def request(self, request: Message, version: int, response_class: type[M]) -> M:
        """Send a request and return its response."""
        key = request.__options__["key"]
        assert self.send(framed(request, version, self.client_id)), "the connection was closed before the request"
        body = self.receive_response()
        assert body is not None, f"the connection was closed without a response to {type(request).__name__}"
        return decode(response_class, body, version, decode_response_header(body, key, version)[1])

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def framed(request: Message, version: int, client_id: str = "hostile", correlation_id: int = 1) -> bytes:
    key = request.__options__["key"]
    return encode_frame(encode_request_header(key, version, correlation_id, client_id), encode(request, version))


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


def create_topic(bootstrap: str, name: str, partitions: int = 1, **configs: object) -> None:
    """Create a topic; config names have underscores for dots."""
    rows = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
    with RawClient(bootstrap, "setup") as client:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        response = client.request(request, CREATE_TOPICS_VERSION, CreateTopicsResponse)
    assert response.topics[0].error_code == 0, response
