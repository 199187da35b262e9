"""Requests as bytes, from the codecs of protocol/, and the positions in them that the client looks at or changes."""

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from protocol.apis import ApiKey
from protocol.framing import encode_frame, encode_request_header, encode_response_header
from protocol.messages.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from protocol.messages.k01_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from protocol.records.batch import CRC_START, TRANSACTIONAL, build_batch
from protocol.schema.codec import encode
from protocol.schema.message import Message, message_info
from scripts.benchmark.capacity.client import Counter, crc_masks
from scripts.benchmark.clients import CLIENT_ID

M = TypeVar("M", bound=Message)
Topic = tuple[str, bytes]

# In a batch: where the CRC and the base sequence are.
CRC_AT = 17
SEQUENCE_AT = 53
MAX_WAIT_MS = 500


def api_key(message: Message) -> ApiKey:
    key = message_info(type(message)).key
    assert key is not None
    return ApiKey(key)


def frame(request: Message, version: int) -> bytes:
    header = encode_request_header(api_key(request), version, 0, CLIENT_ID)
    return encode_frame(header, encode(request, version))


def error_position(response: M, version: int, set_error: Callable[[M], None]) -> int:
    """Return the position of an error code in a response, after the size field.

    `response` has no error and is as long as the real ones up to that code; `set_error` sets the code to -1.
    """
    header = len(encode_response_header(api_key(response), version, 0))
    good = encode(response, version)
    set_error(response)
    bad = encode(response, version)
    return header + next(at for at, (a, b) in enumerate(zip(good, bad, strict=True)) if a != b)


# Produce.


def batch(count: int, size: int, producer: tuple[int, int] | None = None, *, transactional: bool = False) -> bytearray:
    """Build a batch of `count` records with random values of `size` bytes. `producer`: its id and epoch."""
    now = int(time.time() * 1000)
    records = [(now, None, os.urandom(size), ()) for _ in range(count)]
    if producer is None:
        return build_batch(records)
    return build_batch(
        records,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
    )


def produce_frame(
    topic: Topic, partition: int, records: bytearray, version: int, transactional_id: str | None = None
) -> bytes:
    data = PartitionProduceData(index=partition, records=records)
    topics = [TopicProduceData(name=topic[0], topic_id=topic[1], partition_data=[data])]
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=topics)
    return frame(request, version)


def sequence_counter(produce: bytes, records: bytearray, count: int) -> Counter:
    """Return the counter that increases the base sequence of a batch by `count` each time its request is sent.

    `produce` is the frame, `records` the batch in it. The counter's positions begin after the frame's size field.
    """
    at = produce.index(records) - 4
    masks = crc_masks(len(records) - CRC_START, SEQUENCE_AT - CRC_START)
    return Counter(at + SEQUENCE_AT, count, at + CRC_AT, masks)


def produce_error_at(topic: Topic, version: int) -> int:
    partition = PartitionProduceResponse(index=0)
    responses = [TopicProduceResponse(name=topic[0], topic_id=topic[1], partition_responses=[partition])]

    def set_error(response: ProduceResponse) -> None:
        partition.error_code = -1

    return error_position(ProduceResponse(responses=responses), version, set_error)


# Fetch.


def fetch_request(
    topic: Topic, partitions: Sequence[int], max_bytes: int, *, session_id: int = 0, session_epoch: int = -1
) -> FetchRequest:
    """Return a fetch from offset 0, by default without a fetch session. `max_bytes`: the limit of each partition."""
    rows = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=max_bytes) for index in partitions]
    return FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=64 << 20,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic[0], topic_id=topic[1], partitions=rows)] if rows else [],
    )


def fetch_error_at(topic: Topic, version: int) -> int:
    partition = PartitionData(partition_index=0)
    responses = [FetchableTopicResponse(topic=topic[0], topic_id=topic[1], partitions=[partition])]

    def set_error(response: FetchResponse) -> None:
        partition.error_code = -1

    return error_position(FetchResponse(responses=responses), version, set_error)


def session_epoch_at(version: int) -> int:
    """Return the position of the session epoch in a Fetch request, after the size field."""
    first, second = (frame(FetchRequest(session_epoch=epoch), version) for epoch in (0, 0x7F7F7F7F))
    return next(at for at, (a, b) in enumerate(zip(first, second, strict=True)) if a != b) - 4
