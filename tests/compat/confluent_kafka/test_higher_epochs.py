"""librdkafka stores a record twice after a change of the leader, with any broker, since it increases its epoch.

https://github.com/confluentinc/librdkafka/issues/4953. The tests of failovers permit such copies, and no others.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.framing import (
    ParsedRequestHeader,
    decode_request_header,
    decode_response_header,
    encode_frame,
    encode_response_header,
)
from protocol.messages.k00_produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages.k03_metadata import MetadataResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message
from tests.compat.crash.checks import read_topic
from tests.compat.crash.proxy import ProxiedConnection, Proxy, read_frame
from tests.compat.crash.stored_epochs import stored_epoch
from tests.compat.support import DEADLINE_S

VALUES = [b"first", b"second", b"third"]


class MovedLeader(Proxy):
    """Responds to the first three Produce requests like a leader that resigns, and its successor.

    The former leader appends the first two, and responds NOT_LEADER_OR_FOLLOWER to both when it resigns. Only the first
    had reached the successor. The third goes to the successor, which refuses it: a sequence is missing.
    """

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.forward_to(bootstrap)
        self.errors: list[int] = []
        self._produced: list[ParsedRequestHeader] = []
        self._requests: dict[int, bytes] = {}

    async def _forward_requests(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            header = decode_request_header(frame)
            self._requests[header.correlation_id] = frame
            if header.api_key == ApiKey.PRODUCE:
                self._produced.append(header)
                if len(self._produced) == 2:
                    continue
            connection.outstanding[header.correlation_id] = frame
            connection.broker.write(encode_frame(b"", frame))

    async def _forward_responses(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            correlation_id = int.from_bytes(frame[:4], "big")
            header = decode_request_header(connection.outstanding.pop(correlation_id))
            _, position = decode_response_header(frame, header.api_key, header.version)
            if header.api_key == ApiKey.METADATA:
                self._respond_with(
                    connection, header, self._here(decode(MetadataResponse, frame, header.version, position))
                )
            elif header in self._produced[:1]:
                # It is not known to the client before the third request is refused: the requests are pipelined.
                assert (
                    decode(ProduceResponse, frame, header.version, position)
                    .responses[0]
                    .partition_responses[0]
                    .error_code
                    == 0
                )
            else:
                if header in self._produced[2:3]:
                    for refused in self._produced[:2]:
                        self._respond_with(connection, refused, self._not_leader(refused))
                if header.api_key == ApiKey.PRODUCE:
                    response = decode(ProduceResponse, frame, header.version, position)
                    self.errors.append(response.responses[0].partition_responses[0].error_code)
                connection.client.write(encode_frame(b"", frame))

    def _here(self, response: MetadataResponse) -> MetadataResponse:
        host, _, port = self.address.rpartition(":")
        for broker in response.brokers:
            broker.host, broker.port = host, int(port)
        return response

    def _not_leader(self, header: ParsedRequestHeader) -> ProduceResponse:
        frame = self._requests[header.correlation_id]
        [topic] = decode(ProduceRequest, frame, header.version, header.body_pos).topic_data
        [partition] = topic.partition_data
        error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.errors.append(error)
        row = PartitionProduceResponse(index=partition.index, error_code=error, base_offset=-1)
        return ProduceResponse(
            responses=[TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])]
        )

    def _respond_with(self, connection: ProxiedConnection, header: ParsedRequestHeader, response: Message) -> None:
        head = encode_response_header(header.api_key, header.version, header.correlation_id)
        connection.client.write(encode_frame(head, encode(response, header.version)))


@pytest.fixture
def moved_leader(bootstrap: str) -> Iterator[MovedLeader]:
    proxy = MovedLeader(bootstrap)
    yield proxy
    proxy.close()


@pytest.mark.feature("idempotence")
def test_librdkafka_sends_a_stored_record_again_in_a_higher_epoch(
    topic: Callable[..., str], bootstrap: str, moved_leader: MovedLeader
) -> None:
    name, offsets = topic(), []
    producer = Producer(
        {
            "bootstrap.servers": moved_leader.address,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "log_level": 2,
        }
    )
    for value in VALUES:
        producer.produce(
            name, value, partition=0, on_delivery=lambda error, sent: offsets.append((error, sent.offset()))
        )
    assert producer.flush(DEADLINE_S) == 0
    not_leader, out_of_order = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert moved_leader.errors == [not_leader, not_leader, out_of_order, 0, 0, 0]
    [records] = read_topic(bootstrap, name, 1)
    assert [value for _, _, value in records] == [VALUES[0], *VALUES]
    assert offsets == [(None, 1), (None, 2), (None, 3)]
    first, *again = (stored_epoch(bootstrap, name, 0, offset) for offset in range(4))
    assert again == [first._replace(epoch=first.epoch + 1)] * 3
