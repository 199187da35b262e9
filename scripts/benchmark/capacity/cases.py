"""The capacity cases, with the ratios to Apache Kafka that the project requires, and the loads that they prepare."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from protocol.apis import ApiKey
from protocol.messages.k01_fetch import FetchResponse
from protocol.messages.k02_list_offsets import ListOffsetsRequest
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.k18_api_versions import ApiVersionsRequest
from protocol.messages.k22_transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from protocol.messages.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.schema.codec import encode
from protocol.schema.message import Message
from scripts.benchmark.capacity import requests
from scripts.benchmark.capacity.client import Counter, Load, connected
from scripts.benchmark.capacity.requests import Topic, api_key, error_position, frame
from scripts.benchmark.capacity.server import Server

# Creates what the requests need, and removes it at the end of its context.
Prepare = Callable[[Server], AbstractContextManager[Load]]
# The part of a response that has an error code.
ErrorRow = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """`at_least` and `at_most`: bounds of kbroker's ratio to Apache Kafka for responses/s and processor time."""

    name: str
    prepare: Prepare
    at_least: float | None = None
    at_most: float | None = None


def rotated(frames: Sequence[bytes], connections: int) -> list[list[bytes]]:
    """Return the frames of each connection: all of them, but each connection begins with a different one."""
    count = len(frames)
    return [[frames[(first + index) % count] for index in range(count)] for first in range(connections)]


def error_position_of(response: Message, version: int, error_row: ErrorRow) -> int:
    """Return the position of the error code of a response from a server."""

    def set_error(response: Message) -> None:
        error_row(response).error_code = -1

    return error_position(response, version, set_error)


@contextmanager
def repeating(
    server: Server, requests: Sequence[Message], error_row: ErrorRow, connections: int, in_flight: int
) -> Iterator[Load]:
    """Yield a load in which each connection repeats one of the requests.

    Before that, each request is sent until its response has no error. The last response shows the size of a response
    and the position of its error code.
    """
    version = server.version(api_key(requests[0]))
    for request in requests:
        response = server.request(request, lambda response: error_row(response).error_code, version)
    size = len(encode(response, version))
    frames = [frame(request, version) for request in requests]
    each = [[frames[index % len(frames)]] for index in range(connections)]
    yield Load(each, in_flight, error_position_of(response, version, error_row), size)


# Cases of requests without records: the same request over and over.

GROUP = "capacity"
SESSION_TIMEOUT_MS = 120_000
# The newest versions in which a join needs one request, and LeaveGroup has one member.
JOIN_VERSION, LEAVE_VERSION = 3, 2
TOPIC_CONFIGS = 2


@contextmanager
def metadata(server: Server) -> Iterator[Load]:
    """Metadata of one topic of 6 partitions."""
    with server.topic(PARTITIONS) as (name, _):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        with repeating(server, [request], lambda response: response.topics[0], 8, 5) as load:
            yield load


def offset_commit(group: str, topic: Topic) -> OffsetCommitRequest:
    """Return a request that commits the offset of one partition, for a group without members."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=topic[0], topic_id=topic[1], partitions=[partition])]
    return OffsetCommitRequest(group_id=group, topics=topics)


@contextmanager
def committing(server: Server) -> Iterator[Load]:
    with server.topic(PARTITIONS) as topic:
        server.find_coordinator(GROUP, key_type=0)
        request = offset_commit(GROUP, topic)
        with repeating(server, [request], lambda response: response.topics[0].partitions[0], 4, 5) as load:
            yield load


@contextmanager
def fetching_offsets(server: Server) -> Iterator[Load]:
    """OffsetFetch of one partition, with require_stable as the Java client sends it."""
    with server.topic(PARTITIONS) as topic:
        server.find_coordinator(GROUP, key_type=0)
        commit = offset_commit(GROUP, topic)
        server.request(commit, lambda response: response.topics[0].partitions[0].error_code)
        topics = [OffsetFetchRequestTopics(name=topic[0], topic_id=topic[1], partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)], require_stable=True
        )
        with repeating(server, [request], lambda response: response.groups[0], 4, 5) as load:
            yield load


@contextmanager
def heartbeats(server: Server) -> Iterator[Load]:
    """Heartbeats of 8 groups with one member each."""
    members = [join(server, f"{GROUP}-{number}") for number in range(8)]
    with repeating(server, members, lambda response: response, 8, 5) as load:
        yield load
    for member in members:
        leave = LeaveGroupRequest(group_id=member.group_id, member_id=member.member_id)
        server.request(leave, lambda response: response.error_code, LEAVE_VERSION)


def join(server: Server, group: str) -> HeartbeatRequest:
    """Join a group as its only member; returns the member's heartbeat."""
    server.find_coordinator(group, key_type=0)
    join_group = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )
    joined = server.request(join_group, lambda response: response.error_code, JOIN_VERSION)
    assert isinstance(joined, JoinGroupResponse)
    generation, member = joined.generation_id, joined.member_id
    assignments = [SyncGroupRequestAssignment(member_id=member)]
    sync = SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=assignments)
    server.request(sync, lambda response: response.error_code, JOIN_VERSION)
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)


@contextmanager
def listing_offsets(server: Server) -> Iterator[Load]:
    """List the latest offset of 6 partitions."""
    with server.topic(PARTITIONS) as (name, _):
        request: ListOffsetsRequest = server.offsets_request(name, range(PARTITIONS))
        with repeating(server, [request], lambda response: response.topics[0].partitions[0], 8, 5) as load:
            yield load


@contextmanager
def finding_coordinator(server: Server) -> Iterator[Load]:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
    with repeating(server, [request], lambda response: response.coordinators[0], 8, 5) as load:
        yield load


@contextmanager
def api_versions(server: Server) -> Iterator[Load]:
    request = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    with repeating(server, [request], lambda response: response, 8, 5) as load:
        yield load


@contextmanager
def describing_configs(server: Server) -> Iterator[Load]:
    """Describe all configs of one topic."""
    with server.topic(PARTITIONS) as (name, _):
        resource = DescribeConfigsResource(resource_type=TOPIC_CONFIGS, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        with repeating(server, [request], lambda response: response.results[0], 8, 5) as load:
            yield load


# Cases of Produce and Fetch.

PARTITIONS = 6


def producing(
    records: int, size: int, *, partitions: int = PARTITIONS, connections: int = 4, in_flight: int = 5
) -> Prepare:
    """Yield batches of `records` records of `size` bytes, to one partition after another."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.PRODUCE)
        with server.topic(partitions) as topic:
            frames = produce_frames(topic, range(partitions), records, size, version)
            yield Load(rotated(frames, connections), in_flight, requests.produce_error_at(topic, version))

    return prepare


def produce_frames(topic: Topic, partitions: Sequence[int], records: int, size: int, version: int) -> list[bytes]:
    return [requests.produce_frame(topic, index, requests.batch(records, size), version) for index in partitions]


def fetching(
    limit: int, records: int, size: int, *, response_bytes: int, connections: int = 8, in_flight: int = 2
) -> Prepare:
    """Fetches of at most `limit` bytes from offset 0 of one partition after another, without a fetch session.

    The topic has batches of `records` records of `size` bytes. A batch that is larger than the limit is in the response
    as a whole.
    """

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.FETCH)
        topic = filled_topic(server, PARTITIONS, range(PARTITIONS), records, size, 2 * max(limit, records * size))
        frames = [requests.frame(requests.fetch_request(topic, [index], limit), version) for index in range(PARTITIONS)]
        error_at = requests.fetch_error_at(topic, version)
        yield Load(rotated(frames, connections), in_flight, error_at, response_bytes)

    return prepare


def fetching_in_session(partitions: int, connections: int = 8) -> Prepare:
    """Fetches in sessions (KIP-227) of `partitions` partitions, of which one has data: 8 KiB in each response."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.FETCH)
        topic = filled_topic(server, partitions, [0], 4, 990, 16 << 10)
        first = requests.fetch_request(topic, range(partitions), 8 << 10, session_epoch=0)
        sessions = []
        for _ in range(connections):
            response = server.request(first, lambda response: response.error_code, version)
            assert isinstance(response, FetchResponse)
            sessions.append(response.session_id)

        def following(session_id: int, epoch: int) -> bytes:
            request = requests.fetch_request(topic, [], 0, session_id=session_id, session_epoch=epoch)
            return requests.frame(request, version)

        yield Load(
            [[following(session_id, 1)] for session_id in sessions],
            in_flight=1,
            error_at=requests.fetch_error_at(topic, version),
            response_bytes=8_000,
            counter=Counter(requests.session_epoch_at(version), 1),
        )
        for session_id in sessions:
            close = requests.fetch_request(topic, [], 0, session_id=session_id, session_epoch=-1)
            server.request(close, lambda response: response.error_code, version)

    return prepare


def filled_topic(
    server: Server, partitions: int, filled: Sequence[int], records: int, size: int, min_bytes: int
) -> Topic:
    """Return a topic with at least `min_bytes` in each of the filled partitions.

    Its batches have `records` records of `size` bytes. It is kept for all rounds, and for other cases with the same
    partitions and records.
    """
    topic = server.kept_topic(f"{len(filled)} of {partitions}, {records} of {size} bytes", partitions)
    version = server.version(ApiKey.PRODUCE)
    frames = produce_frames(topic, filled, records, size, version)
    # Each connection fills a partition; the faster ones write more than the others.
    load = Load([[one] for one in frames], 2, requests.produce_error_at(topic, version))
    batches = len(filled) * (min_bytes // (records * size) + 1)
    while min(server.offsets(topic[0], filled)) * size < min_bytes:
        with connected(server.port, load, 60, responses=batches, name=server.label) as client:
            client.run()
    return topic


# Cases of producers with a producer id: their sequences advance with each batch.

# Newer versions of these belong to transactions v2 (KIP-890), in which Produce adds partitions.
ADD_PARTITIONS_VERSION = 3
END_TXN_VERSION = 4
MAX_PRODUCE_VERSION = 11
TIMEOUT_MS = 600_000

Producer = tuple[int, int]


def idempotent(records: int, size: int, *, connections: int = 4, in_flight: int = 5) -> Prepare:
    """Like the plain Produce cases, but each connection is an idempotent producer."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.PRODUCE)
        with server.topic(PARTITIONS) as topic:
            producers = [init_producer_id(server, None) for _ in range(connections)]
            yield produce_load(topic, [(producer, None) for producer in producers], records, size, in_flight, version)

    return prepare


def transactional(records: int, size: int, *, connections: int = 4, in_flight: int = 5) -> Prepare:
    """Each connection is a transactional producer, whose transaction is committed after the measurement."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = min(server.version(ApiKey.PRODUCE), MAX_PRODUCE_VERSION)
        with server.topic(PARTITIONS) as topic:
            producers = [
                (init_producer_id(server, transactional_id), transactional_id)
                for transactional_id in (f"{topic[0]}-{number}" for number in range(connections))
            ]
            for producer, transactional_id in producers:
                add_partitions(server, producer, transactional_id, topic)
            yield produce_load(topic, producers, records, size, in_flight, version)
            for (producer_id, epoch), transactional_id in producers:
                end = EndTxnRequest(
                    transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
                )
                server.request(end, lambda response: response.error_code, END_TXN_VERSION)

    return prepare


def produce_load(
    topic: Topic,
    producers: Sequence[tuple[Producer, str | None]],
    records: int,
    size: int,
    in_flight: int,
    version: int,
    partitions: int = PARTITIONS,
) -> Load:
    """`producers`: for each connection its producer id and epoch, and its transactional id if it has one."""
    frames = []
    for first, (producer, transactional_id) in enumerate(producers):
        mine = []
        for index in range(partitions):
            batch = requests.batch(records, size, producer, transactional=transactional_id is not None)
            partition = (first + index) % partitions
            mine.append(requests.produce_frame(topic, partition, batch, version, transactional_id))
        frames.append(mine)
    counter = requests.sequence_counter(mine[-1], batch, records)
    return Load(frames, in_flight, requests.produce_error_at(topic, version), counter=counter)


def init_producer_id(server: Server, transactional_id: str | None) -> Producer:
    if transactional_id is not None:
        server.find_coordinator(transactional_id, key_type=1)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    response = server.request(request, lambda response: response.error_code)
    assert isinstance(response, InitProducerIdResponse)
    return response.producer_id, response.producer_epoch


def add_partitions(server: Server, producer: Producer, transactional_id: str, topic: Topic) -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic[0], partitions=list(range(PARTITIONS)))],
    )

    def error_of(response: AddPartitionsToTxnResponse) -> int:
        rows = response.results_by_topic_v3_and_below[0].results_by_partition
        return next((row.partition_error_code for row in rows if row.partition_error_code), 0)

    server.request(request, error_of, ADD_PARTITIONS_VERSION)


def all_cases() -> list[Case]:
    # Two batches of 4 KiB are below 8 KiB.
    batch = 4, 990
    return [
        Case("produce 64 KiB of 100 B", producing(570, 100), 1.4, 0.45),
        Case("produce 16 KiB of 1 KiB", producing(15, 1024), 1.1, 0.55),
        Case("produce 1 record", producing(1, 100, connections=8), 1.1, 0.6),
        Case("produce 1 MiB", producing(900, 1024, partitions=2, in_flight=2), 1.0, 0.7),
        Case("fetch 1 MiB", fetching(1 << 20, 60, 1024, response_bytes=900_000, connections=4), 0.7, 1.0),
        Case("fetch 8 KiB, batches of 60 KiB", fetching(8 << 10, 60, 1024, response_bytes=60_000), 0.8, 0.9),
        Case("fetch 8 KiB, batches of 4 KiB", fetching(8 << 10, *batch, response_bytes=8_000)),
        Case("metadata", metadata, 1.1, 0.5),
        Case("offset commit", committing, 1.3, 0.5),
        Case("offset fetch", fetching_offsets, 1.2, 0.5),
        Case("idempotent produce 16 KiB", idempotent(15, 1024)),
        Case("idempotent produce 1 record", idempotent(1, 100, connections=8)),
        Case("transactional produce 16 KiB", transactional(15, 1024)),
        Case("heartbeat", heartbeats),
        Case("list offsets", listing_offsets),
        Case("find coordinator", finding_coordinator),
        Case("api versions", api_versions),
        Case("describe configs", describing_configs),
        Case("produce 1 record, 500 connections", producing(1, 100, connections=500, in_flight=1)),
        Case("fetch session of 1,000 partitions", fetching_in_session(1_000)),
        Case("produce 1 record, one in flight", producing(1, 100, connections=1, in_flight=1)),
        Case("fetch 8 KiB, one in flight", fetching(8 << 10, *batch, response_bytes=8_000, connections=1, in_flight=1)),
    ]
