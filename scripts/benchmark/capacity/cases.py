"""The cases: what the clients of each send, over how many connections, and what the project requires of itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from protocol.apis import ApiKey
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.schema.message import Message
from scripts.benchmark.capacity import requests
from scripts.benchmark.capacity.client import Load, connected
from scripts.benchmark.capacity.requests import Topic
from scripts.benchmark.capacity.server import Server

PARTITIONS = 6
GROUP = "capacity"


@dataclass(frozen=True)
class Case:
    """`at_least` and `at_most`: bounds of kbroker's ratio to Apache Kafka for responses/s and processor time.

    `prepare` makes what the requests need, and undoes it at the end of its context.
    """

    name: str
    prepare: Callable[[Server], AbstractContextManager[Load]]
    at_least: float | None = None
    at_most: float | None = None


def rotated(frames: Sequence[bytes], connections: int) -> list[list[bytes]]:
    """Return the frames of each connection: all, but each begins with another one."""
    count = len(frames)
    return [[frames[(first + index) % count] for index in range(count)] for first in range(connections)]


def repeated(request: Message, version: int, connections: int) -> list[list[bytes]]:
    return [[requests.frame(request, version)]] * connections


# Produce.


def producing(
    records: int, size: int, *, partitions: int = PARTITIONS, connections: int = 4, in_flight: int = 5
) -> Callable[[Server], AbstractContextManager[Load]]:
    """Batches of `records` records of `size` bytes, to one partition after the other."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.PRODUCE)
        with server.topic(partitions) as topic:
            frames = produce_frames(topic, partitions, records, size, version)
            yield Load(rotated(frames, connections), in_flight, requests.produce_error_at(topic, version))

    return prepare


def produce_frames(topic: Topic, partitions: int, records: int, size: int, version: int) -> list[bytes]:
    return [requests.produce_frame(topic, index, requests.batch(records, size), version) for index in range(partitions)]


# Fetch.


def filled_topic(server: Server, records: int, size: int, min_bytes: int) -> Topic:
    """Return a topic with at least `min_bytes` in each partition, in batches of `records` records of `size` bytes.

    All cases with the same parameters share it.
    """
    key = f"{records} records of {size} bytes"
    if key not in server.kept:
        topic = server.kept[key] = server.create_topic(PARTITIONS)
        version = server.version(ApiKey.PRODUCE)
        frames = produce_frames(topic, PARTITIONS, records, size, version)
        # Each connection fills a partition; the faster ones write more than the others.
        load = Load([[one] for one in frames], 2, requests.produce_error_at(topic, version))
        batches = PARTITIONS * (min_bytes // (records * size) + 1)
        while min(server.offsets(topic[0], PARTITIONS)) * size < min_bytes:
            with connected(server.peer.port, load, 60, responses=batches, name=server.label) as client:
                client.run()
    kept = server.kept[key]
    assert isinstance(kept, tuple)
    return kept


def fetching(
    limit: int, records: int, size: int, *, response_bytes: int, connections: int = 8, in_flight: int = 2
) -> Callable[[Server], AbstractContextManager[Load]]:
    """Fetches of at most `limit` bytes from offset 0, from one partition after the other, without a fetch session.

    The topic has batches of `records` records of `size` bytes. A batch that is larger than the limit is in the response
    as a whole.
    """

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.FETCH)
        topic = filled_topic(server, records, size, 2 * max(limit, records * size))
        frames = [requests.frame(requests.fetch_request(topic, [index], limit), version) for index in range(PARTITIONS)]
        error_at = requests.fetch_error_at(topic, version)
        yield Load(rotated(frames, connections), in_flight, error_at, response_bytes)

    return prepare


# Other requests.


@contextmanager
def metadata(server: Server) -> Iterator[Load]:
    """Metadata of one topic of 6 partitions."""
    version = server.version(ApiKey.METADATA)
    with server.topic(PARTITIONS) as (name, _):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        response = server.connection.request(request, MetadataResponse, version)

        def set_error(response: MetadataResponse) -> None:
            response.topics[0].error_code = -1

        error_at = requests.error_position(response, version, set_error)
        yield Load(repeated(request, version, 8), 5, error_at)


@contextmanager
def committing(server: Server) -> Iterator[Load]:
    """OffsetCommit of one partition, by a client that assigns its partitions itself."""
    version = server.version(ApiKey.OFFSET_COMMIT)
    with server.topic(PARTITIONS) as (name, topic_id):
        server.find_coordinator(GROUP, key_type=0)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=[partition])]
        request = OffsetCommitRequest(group_id=GROUP, topics=topics)
        response = server.request(request, lambda response: response.topics[0].partitions[0].error_code, version)
        assert isinstance(response, OffsetCommitResponse)

        def set_error(response: OffsetCommitResponse) -> None:
            response.topics[0].partitions[0].error_code = -1

        error_at = requests.error_position(response, version, set_error)
        yield Load(repeated(request, version, 4), 5, error_at)


def all_cases() -> list[Case]:
    return [
        Case("produce 64 KiB of 100 B", producing(570, 100), 1.4, 0.45),
        Case("produce 16 KiB of 1 KiB", producing(15, 1024), 1.1, 0.55),
        Case("produce 1 record", producing(1, 100, connections=8), 1.1, 0.6),
        Case("produce 1 MiB", producing(900, 1024, partitions=2, in_flight=2), 1.0, 0.7),
        Case("fetch 1 MiB", fetching(1 << 20, 60, 1024, response_bytes=900_000, connections=4), 0.7, 1.0),
        Case("fetch 8 KiB, batches of 60 KiB", fetching(8 << 10, 60, 1024, response_bytes=60_000), 0.8, 0.9),
        Case("fetch 8 KiB, batches of 4 KiB", fetching(8 << 10, 4, 990, response_bytes=8_000)),
        Case("metadata", metadata, 1.1, 0.5),
        Case("offset commit", committing, 1.3, 0.5),
    ]
