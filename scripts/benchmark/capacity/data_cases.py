"""Cases of Produce and Fetch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from protocol.apis import ApiKey
from protocol.messages.k01_fetch import FetchResponse
from scripts.benchmark.capacity import requests
from scripts.benchmark.capacity.case import Prepare, rotated
from scripts.benchmark.capacity.client import Counter, Load, connected
from scripts.benchmark.capacity.requests import Topic
from scripts.benchmark.capacity.server import Server

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
