"""The hand-written codecs of Produce and Fetch agree with the rows in every version, and reject every truncation."""

from random import Random
from typing import Any

import pytest

from protocol.errors import MalformedError
from protocol.fast.current_leader import CurrentLeader, LeaderEndpoint
from protocol.fast.fetch import FetchRequest as WireFetch
from protocol.fast.fetch import FetchResponse, FetchResult, decode_fetch_request, encode_fetch_response
from protocol.fast.produce import decode_produce_request, encode_produce_response
from protocol.messages import k00_produce, k01_fetch
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
ROUNDS = 8


def topic_key(rng: Random, by_id: bool) -> str | bytes:
    return rng.randbytes(16) if by_id else "t" * rng.choice((1, 5, 200)) + str(rng.randrange(1000))


def named(key: str | bytes) -> dict[str, str | bytes]:
    return {"topic_id": key} if isinstance(key, bytes) else {"name": key}


def produce_request(rng: Random, version: int) -> tuple[Message, tuple]:
    topics, rows = [], []
    for _ in range(rng.randrange(4)):
        key = topic_key(rng, version >= 13)
        parts = [
            (rng.randrange(1 << 20), rng.choice((None, b"", rng.randbytes(rng.choice((1, 100, 300))))))
            for _ in range(rng.randrange(3))
        ]
        topics.append((key, parts))
        data = [k00_produce.PartitionProduceData(index=index, records=records) for index, records in parts]
        rows.append(k00_produce.TopicProduceData(**named(key), partition_data=data))
    transactional_id = rng.choice((None, "", "tx-1"))
    acks, timeout = rng.choice((-1, 0, 1)), rng.randrange(1 << 30)
    message = k00_produce.ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout, topic_data=rows
    )
    return message, (transactional_id, acks, timeout, topics)


def fetch_request(rng: Random, version: int) -> tuple[Message, WireFetch]:
    topics, rows = [], []
    for _ in range(rng.randrange(4)):
        key = topic_key(rng, version >= 13)
        parts, part_rows = [], []
        for _ in range(rng.randrange(3)):
            index, epoch, offset, last, size = (rng.randrange(1 << 20) for _ in range(5))
            epoch = epoch if version >= 9 else -1
            last = last if version >= 12 else -1
            start = rng.randrange(99) if version >= 5 else -1
            parts.append((index, epoch, offset, last, size, start))
            tagged = {"high_watermark": 7} if version >= 18 and rng.random() < 0.5 else {}
            part_rows.append(
                k01_fetch.FetchPartition(
                    partition=index, current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=last,
                    log_start_offset=start, partition_max_bytes=size, **tagged,
                )
            )  # fmt: skip
        topics.append((key, parts))
        name = {"topic_id": key} if isinstance(key, bytes) else {"topic": key}
        rows.append(k01_fetch.FetchTopic(**name, partitions=part_rows))
    forgotten, forgotten_rows = [], []
    for _ in range(rng.randrange(3) if version >= 7 else 0):
        key = topic_key(rng, version >= 13)
        name = {"topic_id": key} if isinstance(key, bytes) else {"topic": key}
        indexes = [rng.randrange(100) for _ in range(rng.randrange(5))]
        forgotten.append((key, indexes))
        forgotten_rows.append(k01_fetch.ForgottenTopic(**name, partitions=indexes))
    replica = rng.choice((-1, 3))
    by_version = {"replica_id": replica} if version < 15 else {}
    if version >= 15:
        by_version["replica_state"] = k01_fetch.ReplicaState(replica_id=replica, replica_epoch=7)
    session = (rng.randrange(1, 99), rng.randrange(99)) if version >= 7 else (0, -1)
    rack = "rack-a" if version >= 11 else ""
    message = k01_fetch.FetchRequest(
        max_wait_ms=5, min_bytes=6, max_bytes=7, isolation_level=1, session_id=session[0], session_epoch=session[1],
        topics=rows, forgotten_topics_data=forgotten_rows, rack_id=rack, **by_version,
    )  # fmt: skip
    return message, WireFetch(
        replica, 5, 6, 7, 1, *session, topics, forgotten, rack or None, 7 if version >= 15 else -1, version
    )


def plain(value: object) -> object:
    """Lists and tuples alike, records as bytes."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_requests(version: int) -> None:
    rng = Random(version)
    for _ in range(ROUNDS):
        message, expected = produce_request(rng, version)
        frame = encode(message, version)
        assert plain(decode_produce_request(memoryview(frame), 0, version)) == plain(expected)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_requests(version: int) -> None:
    rng = Random(version)
    for _ in range(ROUNDS):
        message, expected = fetch_request(rng, version)
        frame = encode(message, version)
        assert plain(decode_fetch_request(memoryview(frame), 0, version)) == plain(expected)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_responses(version: int) -> None:
    rng = Random(version)
    topics, rows = [], []
    for _ in range(3):
        key = topic_key(rng, version >= 13)
        parts, part_rows = [], []
        for index in range(3):
            errors = ((0, "why"), (2, None)) if index == 1 and version >= 8 else ()
            message = "all of it" if index == 2 and version >= 8 else None
            start = 4 if version >= 5 else -1
            parts.append((index, index, 1 << 40, -1, start, errors, message))
            record_errors = [
                k00_produce.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
                for at, text in errors
            ]
            part_rows.append(
                k00_produce.PartitionProduceResponse(
                    index=index, error_code=index, base_offset=1 << 40, log_append_time_ms=-1,
                    log_start_offset=start, record_errors=record_errors, error_message=message,
                )
            )  # fmt: skip
        topics.append((key, parts))
        rows.append(k00_produce.TopicProduceResponse(**named(key), partition_responses=part_rows))
    expected = encode(k00_produce.ProduceResponse(responses=rows), version)
    assert encode_produce_response(topics, version) == expected


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_responses(version: int) -> None:
    rng = Random(version)
    topics, rows = [], []
    for number in range(3):
        key = topic_key(rng, version >= 13)
        results, part_rows = [], []
        for index in range(3):
            aborted = (None, [], [(5, 6), (7, 8)])[index]
            records = (b"", rng.randbytes(10), rng.randbytes(300))[(index + number) % 3]
            diverging = (3, 99) if index == 2 and version >= 12 else None
            start = 2 if version >= 5 else -1
            results.append(FetchResult(index, index, 10, 9, start, aborted, records, diverging))
            tagged = {}
            if diverging:
                tagged["diverging_epoch"] = k01_fetch.EpochEndOffset(epoch=3, end_offset=99)
            transactions = aborted and [
                k01_fetch.AbortedTransaction(producer_id=pid, first_offset=first) for pid, first in aborted
            ]
            part_rows.append(
                k01_fetch.PartitionData(
                    partition_index=index, error_code=index, high_watermark=10, last_stable_offset=9,
                    log_start_offset=start, aborted_transactions=transactions, preferred_read_replica=-1,
                    records=records, **tagged,
                )
            )  # fmt: skip
        topics.append((key, results))
        name = {"topic_id": key} if isinstance(key, bytes) else {"topic": key}
        rows.append(k01_fetch.FetchableTopicResponse(**name, partitions=part_rows))
    session = {"error_code": 0, "session_id": 77} if version >= 7 else {}
    expected = encode(k01_fetch.FetchResponse(**session, responses=rows), version)
    assert b"".join(encode_fetch_response(FetchResponse(0, 77, topics), version)) == expected


LEADERS = [
    CurrentLeader(2, 7, LeaderEndpoint("b2", 9092, "rack")),
    CurrentLeader(-1, 8, None),
    CurrentLeader(2, 9, LeaderEndpoint("b2", 9092, "rack")),
    CurrentLeader(3, 9, LeaderEndpoint("b3", 9093, None)),
]


def endpoints(kind: type[Message]) -> list[Any]:
    return [kind(node_id=2, host="b2", port=9092, rack="rack"), kind(node_id=3, host="b3", port=9093, rack=None)]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_responses_with_current_leaders(version: int) -> None:
    key: Any = bytes(15) + b"\1" if version >= 13 else "t"
    results, rows = [], []
    for index, leader in enumerate(LEADERS):
        results.append((index, 6, -1, -1, -1, (), leader))
        tagged = {}
        if version >= 10:
            tagged["current_leader"] = k00_produce.LeaderIdAndEpoch(leader_id=leader.id, leader_epoch=leader.epoch)
        start = {"log_start_offset": -1} if version >= 5 else {}
        rows.append(k00_produce.PartitionProduceResponse(index=index, error_code=6, base_offset=-1, **start, **tagged))
    nodes = {"node_endpoints": endpoints(k00_produce.NodeEndpoint)} if version >= 10 else {}
    topic = k00_produce.TopicProduceResponse(**named(key), partition_responses=rows)
    expected = encode(k00_produce.ProduceResponse(responses=[topic], **nodes), version)
    assert encode_produce_response([(key, results)], version) == expected


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_responses_with_current_leaders_and_a_preferred_replica(version: int) -> None:
    key: Any = bytes(15) + b"\1" if version >= 13 else "t"
    results, rows = [], []
    for index, leader in enumerate([*LEADERS, None, None]):
        # One of the last two is for a consumer with read_committed.
        aborted: Any = [] if index == 5 else None
        replica = 3 if leader is None and version >= 11 else -1
        results.append(FetchResult(index, 6, -1, -1, -1, aborted, b"", None, leader, replica))
        tagged = {}
        if leader is not None and version >= 16:
            tagged["current_leader"] = k01_fetch.LeaderIdAndEpoch(leader_id=leader.id, leader_epoch=leader.epoch)
        rows.append(
            k01_fetch.PartitionData(
                partition_index=index, error_code=6, high_watermark=-1, aborted_transactions=aborted,
                preferred_read_replica=replica, records=b"", **tagged,
            )
        )  # fmt: skip
    name = {"topic_id": key} if version >= 13 else {"topic": key}
    nodes = {"node_endpoints": endpoints(k01_fetch.NodeEndpoint)} if version >= 16 else {}
    session = {"session_id": 77} if version >= 7 else {}
    topic = k01_fetch.FetchableTopicResponse(**name, partitions=rows)
    expected = encode(k01_fetch.FetchResponse(responses=[topic], **nodes, **session), version)
    assert b"".join(encode_fetch_response(FetchResponse(0, 77, [(key, results)]), version)) == expected


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_every_truncated_produce_request_is_rejected(version: int) -> None:
    frame = encode(produce_request(Random(5), version)[0], version)
    for size in range(len(frame)):
        with pytest.raises(MalformedError):
            decode_produce_request(memoryview(frame)[:size], 0, version)
    assert decode(k00_produce.ProduceRequest, frame, version)


@pytest.mark.parametrize("version", [4, 7, 11, 12, 18])
def test_every_truncated_fetch_request_is_rejected(version: int) -> None:
    frame = encode(fetch_request(Random(5), version)[0], version)
    for size in range(len(frame)):
        with pytest.raises(MalformedError):
            decode_fetch_request(memoryview(frame)[:size], 0, version)


@pytest.mark.parametrize("version", [3, 13])
def test_a_count_beyond_the_frame_is_rejected_before_the_elements_are_decoded(version: int) -> None:
    head = b"\xff\xff" if version == 3 else b"\0"
    huge = b"\x7f\xff\xff\xff" if version == 3 else b"\xff\xff\xff\xff\x0f"
    with pytest.raises(MalformedError, match="array of"):
        decode_produce_request(memoryview(head + b"\0\1\0\0\0\1" + huge + bytes(50)), 0, version)
