"""The follower's codec of Fetch agrees with the rows in every version, and rejects every truncation."""

from random import Random

import pytest

from protocol.errors import MalformedError
from protocol.fast.fetch import decode_fetch_request
from protocol.fast.replica_fetch import ReplicaFetchRequest, decode_replica_fetch_response, encode_replica_fetch_request
from protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    ReplicaState,
)
from protocol.schema.codec import encode
from tests.unit.support.random_messages import random_message

FIRST_VERSION = 17
VERSIONS = range(FIRST_VERSION, 19)
ROUNDS = 20


def random_request(rng: Random) -> ReplicaFetchRequest:
    def number() -> int:
        return rng.choice((-1, 0, 1, rng.randrange(1 << 31)))

    request = ReplicaFetchRequest(*(number() for _ in range(7)))
    for _ in range(rng.choice((0, 1, 3))):
        rows = [(number(), number(), number(), number(), number(), number()) for _ in range(rng.choice((0, 1, 130)))]
        request.topics.append((rng.randbytes(16), rows))
    for _ in range(rng.choice((0, 1, 130))):
        request.forgotten.append((rng.randbytes(16), [number() for _ in range(rng.choice((0, 1, 130)))]))
    return request


def message_of(request: ReplicaFetchRequest) -> FetchRequest:
    return FetchRequest(
        replica_state=ReplicaState(replica_id=request.replica_id, replica_epoch=request.replica_epoch),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            FetchTopic(
                topic_id=topic_id,
                partitions=[
                    FetchPartition(
                        partition=index, current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=last,
                        log_start_offset=start, partition_max_bytes=size,
                    )
                    for index, epoch, offset, last, start, size in partitions
                ],
            )
            for topic_id, partitions in request.topics
        ],
        forgotten_topics_data=[ForgottenTopic(topic_id=key, partitions=indexes) for key, indexes in request.forgotten],
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_requests(version: int) -> None:
    rng = Random(version)
    for _ in range(ROUNDS):
        request = random_request(rng)
        assert encode_replica_fetch_request(request) == encode(message_of(request), version)


def test_the_leader_decodes_what_the_follower_encodes() -> None:
    request = ReplicaFetchRequest(3, 77, 500, 1, 10_000, 5, 6, [(bytes(16), [(0, 4, 100, 3, 7, 1000)])])
    decoded = decode_fetch_request(memoryview(encode_replica_fetch_request(request)), 0, FIRST_VERSION)
    assert (decoded.replica_id, decoded.session_id, decoded.session_epoch) == (3, 5, 6)
    assert decoded.topics[0][1][0][:3] == (0, 4, 100)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses(version: int) -> None:
    rng = Random(version)
    for _ in range(ROUNDS):
        message = random_message(FetchResponse, version, rng)
        response = decode_replica_fetch_response(memoryview(encode(message, version)))
        assert (response.error_code, response.session_id) == (message.error_code, message.session_id)
        expected = [(topic.topic_id, data) for topic in message.responses for data in topic.partitions]
        for fetched, (topic_id, data) in zip(response.partitions, expected, strict=True):
            diverging, leader = data.diverging_epoch, data.current_leader
            assert fetched._replace(records=memoryview(b""), diverging=None, leader=None) == (
                topic_id, data.partition_index, data.error_code, data.high_watermark, data.log_start_offset,
                None, None, b"",
            )  # fmt: skip
            assert bytes(fetched.records) == (data.records or b"")
            # A tagged field with the default value is not encoded.
            default = (-1, -1)
            assert (fetched.diverging or default) == (diverging.epoch, diverging.end_offset)
            assert (fetched.leader or default) == (leader.leader_id, leader.leader_epoch)


def test_records_are_slices_of_the_frame() -> None:
    rng = Random(1)
    while True:
        frame = bytes(encode(random_message(FetchResponse, 17, rng), 17))
        fetched = [result for result in decode_replica_fetch_response(memoryview(frame)).partitions if result.records]
        if fetched:
            assert all(result.records.obj is frame for result in fetched)
            break


def test_every_truncated_response_is_rejected() -> None:
    rng = Random(3)
    message = random_message(FetchResponse, 17, rng)
    while not (message.responses and message.responses[0].partitions):
        message = random_message(FetchResponse, 17, rng)
    message.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    frame = encode(message, 17)
    for size in range(len(frame)):
        with pytest.raises(MalformedError):
            list(decode_replica_fetch_response(memoryview(frame)[:size]).partitions)


def test_a_count_beyond_the_frame_is_rejected_before_the_elements_are_decoded() -> None:
    huge = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(MalformedError, match="array of"):
        next(decode_replica_fetch_response(memoryview(bytes(10) + huge + bytes(50))).partitions)
