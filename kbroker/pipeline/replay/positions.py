"""How many of a replay's records a partition has already, whatever became of who sent them.

The sequence numbers of a replay are positions, so a partition's state of our producer says it. That state goes away
(after producer.id.expiration.ms, which brokers count from the records' own timestamps, so that old records leave it
only until the next check): then the batches in the log say it, for each names its producer and sequence.
"""

from typing import NamedTuple

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.connection import Brokers, RefusedError
from kbroker.pipeline.replay.encoding import MAX_SEQUENCE, Target
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from protocol.records.batch import iter_headers

LATEST, EARLIEST = -1, -2
SEQUENCES = MAX_SEQUENCE + 1
FETCH_BYTES = 4 << 20
# How far back of the end the replay's last batch is looked for at first.
SCAN_OFFSETS = 100_000


class Known(NamedTuple):
    """What is certain of one target: so many records of the replay are below this offset of it."""

    position: int
    offset: int


class Start(NamedTuple):
    """Where a target's log ended when the replay was planned, and whether it was empty then."""

    offset: int
    empty: bool


def position_after(last_sequence: int, at_most: int) -> int:
    """The position after the record with this sequence, where there are about `at_most` records, or some more of
    others: sequences begin anew every 2^31 records."""
    found = (last_sequence + 1) & MAX_SEQUENCE or SEQUENCES
    return found + max(0, at_most + SEQUENCES // 2 - found) // SEQUENCES * SEQUENCES


def position(brokers: Brokers, producer_id: int, target: Target, start: Start, known: Known) -> Known:
    """How far the replay is in a target. Raises OSError, RefusedError; PipelineError where nobody can know."""
    # In this order, so that a batch that comes in between lies in what is scanned the next time.
    end = offset(brokers, target, LATEST)
    last = last_sequence(brokers, producer_id, target)
    if end < known.offset:
        raise PipelineError(
            f"{target.topic}-{target.partition} ends at {end}, but it had {known.offset} before: the broker has lost "
            f"records, or it is another topic of this name"
        )
    if last is not None:
        return Known(position_after(last, end - start.offset), end)
    first = offset(brokers, target, EARLIEST)
    found = scan(brokers, producer_id, target, max(known.offset, first), end)
    if found is not None:
        return Known(position_after(found, end - start.offset), end)
    if first <= known.offset:
        return Known(known.position, end)
    if start.empty:
        # What was deleted here since can only have been ours.
        return Known(end - start.offset, end)
    raise PipelineError(
        f"{target.topic}-{target.partition}: records from {known.offset} on were deleted, so how many of the replay's "
        f"it got cannot be told any more"
    )


def last_sequence(brokers: Brokers, producer_id: int, target: Target) -> int | None:
    """The sequence of the last record of this producer, None where its state is gone or the broker does not tell."""
    leader = brokers.leader(*target)
    if not leader.has(ApiKey.DESCRIBE_PRODUCERS):
        return None
    request = DescribeProducersRequest(topics=[TopicRequest(name=target.topic, partition_indexes=[target.partition])])
    answer = leader.ask(request, DescribeProducersResponse).topics[0].partitions[0]
    if answer.error_code:
        raise RefusedError(answer.error_code, f"{target.topic}-{target.partition}", answer.error_message)
    found = [one.last_sequence for one in answer.active_producers if one.producer_id == producer_id]
    return found[0] if found and found[0] >= 0 else None


def offset(brokers: Brokers, target: Target, which: int) -> int:
    """The first offset of a partition's log, or its end."""
    partition = ListOffsetsPartition(partition_index=target.partition, timestamp=which)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=target.topic, partitions=[partition])])
    answer = brokers.leader(*target).ask(request, ListOffsetsResponse).topics[0].partitions[0]
    if answer.error_code:
        raise RefusedError(answer.error_code, f"{target.topic}-{target.partition}")
    return answer.offset


def scan(brokers: Brokers, producer_id: int, target: Target, start: int, end: int) -> int | None:
    """The sequence of this producer's last record in [start, end), by the headers of the batches there, from the
    end backwards."""
    span = SCAN_OFFSETS
    while start < end:
        low = max(start, end - span)
        found = batches(brokers, producer_id, target, low, end)
        if found:
            _, sequence, count = found[-1]
            return (sequence + count - 1) & MAX_SEQUENCE
        end, span = low, span * 4
    return None


def batches(brokers: Brokers, producer_id: int, target: Target, start: int, end: int) -> "list[tuple[int, int, int]]":
    """(base offset, base sequence, offsets) of this producer's batches in [start, end)."""
    found = []
    while start < end:
        fetched = _fetch(brokers, target, start)
        following = start
        for _, header in iter_headers(fetched):
            following = header.next_offset
            if header.producer_id == producer_id and header.base_sequence >= 0 and header.base_offset < end:
                found.append((header.base_offset, header.base_sequence, header.last_offset_delta + 1))
        if following <= start:
            break
        start = following
    return found


def _fetch(brokers: Brokers, target: Target, start: int) -> bytes:
    partition = FetchPartition(partition=target.partition, fetch_offset=start, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[FetchTopic(topic=target.topic, partitions=[partition])],
    )
    answer = brokers.leader(*target).ask(request, FetchResponse)
    if answer.error_code:
        raise RefusedError(answer.error_code, f"{target.topic}-{target.partition}")
    data = answer.responses[0].partitions[0]
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return b""
    if data.error_code:
        raise RefusedError(data.error_code, f"{target.topic}-{target.partition}")
    return bytes(data.records or b"")
