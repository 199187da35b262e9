"""Thousands of connections, slow and silent ones, and clients that send requests and never read."""

import selectors
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.apis import ApiKey
from protocol.framing import encode_request_header
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.k03_metadata import MetadataRequest
from protocol.messages.k18_api_versions import ApiVersionsRequest
from protocol.records.batch import build_batch
from tests.compat.hostile.raw_client import RawClient, create_topic, framed, produce_batch
from tests.compat.hostile.target import MIB, Target
from tests.compat.support import eventually

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

NOW = 1_760_000_000_000


@contextmanager
def connections(target: Target, count: int, **options: int) -> Iterator[list[RawClient]]:
    """Open connections, and close them at the end, ten per millisecond."""
    clients: list[RawClient] = []
    try:
        for number in range(count):
            clients.append(RawClient(target.bootstrap, **options))  # type: ignore[arg-type]
            if number % 10 == 0:
                target.pace()
        yield clients
    finally:
        for number, client in enumerate(clients):
            client.close()
            if number % 10 == 0:
                target.pace()


def test_thousands_of_silent_connections(target: Target) -> None:
    def attack() -> None:
        with connections(target, 2000):
            target.wait_for_round_trips()

    target.attacked("2,000 connections that never send", attack)


def test_connections_that_are_closed_at_once(target: Target) -> None:
    frame = framed(ApiVersionsRequest(client_software_name="hostile", client_software_version="1"), 3)

    def attack() -> None:
        for number in range(2000):
            client = RawClient(target.bootstrap)
            if number % 3:
                client.try_send(frame[: number % len(frame)])
            client.close()
            if number % 5 == 0:
                target.pace()

    target.attacked("2,000 connections that come and go", attack)


def test_requests_in_single_bytes(target: Target) -> None:
    """500 clients send the first bytes of a request one by one, and never the rest."""
    frame = framed(MetadataRequest(topics=None), 12)

    def attack() -> None:
        with connections(target, 500) as clients:
            for pos in range(4):
                for number, client in enumerate(clients):
                    assert client.try_send(frame[pos : pos + 1])
                    if number % 5 == 0:
                        target.pace()

    target.attacked("500 clients of a byte a second", attack)


def test_a_slow_request_is_served_when_it_is_complete(target: Target) -> None:
    frame = framed(MetadataRequest(topics=[]), 12)
    with RawClient(target.bootstrap) as client:
        for pos in range(len(frame)):
            assert client.try_send(frame[pos : pos + 1])
        assert client.try_receive() is not None


def test_half_sent_requests(target: Target) -> None:
    """500 clients send half of a request of 60 KB and then nothing."""
    batch = bytes(build_batch([(NOW, b"k", b"v" * 60_000, ())]))
    half = struct.pack(">i", 60_000) + encode_request_header(ApiKey.PRODUCE, 9, 1, "hostile") + batch[:30_000]

    def attack() -> None:
        with connections(target, 500) as clients:
            for client in clients:
                assert client.try_send(half)
                target.pace()
            target.wait_for_round_trips()

    target.attacked("500 halves of 60 KB", attack)


# Clients that do not read.


@pytest.fixture(scope="module")
def large_topic(shared_target: Target) -> str:
    """30 MB of records."""
    create_topic(shared_target.bootstrap, "large", 1)
    batch = bytes(build_batch([(NOW, None, bytes(1_000_000), ())]))
    with RawClient(shared_target.bootstrap, "setup") as client:
        for _ in range(30):
            assert produce_batch(client, "large", batch) == 0
    return "large"


def fill(target: Target, clients: list[RawClient], frame: bytes, rounds: int) -> None:
    """Send requests as long as the broker reads them, without reading responses."""
    selector = selectors.DefaultSelector()
    unsent = {}
    for client in clients:
        client.socket.setblocking(False)
        selector.register(client.socket, selectors.EVENT_WRITE, client)
        unsent[client] = b""
    for _ in range(rounds):
        for key, _ in selector.select(0):
            data = unsent[key.data] or frame
            try:
                unsent[key.data] = data[key.data.socket.send(data) :]
            except BlockingIOError:
                continue
            except ConnectionError:
                selector.unregister(key.fileobj)
            target.pace(0.2)
        target.pace()


def fetch(topic: str) -> bytes:
    partitions = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    topics = [FetchTopic(topic=topic, partitions=[partitions])]
    return framed(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=topics), 11)


def test_fetches_that_are_never_read(target: Target, large_topic: str) -> None:
    """50 clients each fetch 30 MB ten times or more."""

    def attack() -> None:
        with connections(target, 50, receive_buffer_bytes=4096) as clients:
            fill(target, clients, fetch(large_topic), 20)
            target.wait_for_round_trips(60)

    target.attacked("50 fetchers that never read", attack)


@pytest.fixture(scope="module")
def many_topics(shared_target: Target) -> None:
    """Topics with 900 partitions in total."""
    for number in range(3):
        create_topic(shared_target.bootstrap, f"wide-{number}", 300)


def test_metadata_that_is_never_read(target: Target, many_topics: None) -> None:
    frame = framed(MetadataRequest(topics=None), 12) * 4

    def attack() -> None:
        with connections(target, 50, receive_buffer_bytes=4096) as clients:
            fill(target, clients, frame, 10)
            target.wait_for_round_trips(60)

    target.attacked("50 askers for metadata that never read", attack)


def test_requests_behind_a_waiting_fetch(target: Target) -> None:
    """100 clients pipeline requests after a fetch that waits for records."""
    partitions = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    create_topic(target.bootstrap, "empty")
    topics = [FetchTopic(topic="empty", partitions=[partitions])]
    waiting = framed(FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=1000, topics=topics), 11)
    behind = framed(MetadataRequest(topics=[]), 12) * 3000

    def attack() -> None:
        with connections(target, 100) as clients:
            for client in clients:
                client.try_send(waiting)
            fill(target, clients, behind, 20)
            target.wait_for_round_trips(100)

    target.attacked("100 clients that send on while they wait", attack)
    with RawClient(target.bootstrap) as client:
        assert client.try_send(framed(ApiVersionsRequest(), 0))
        eventually(lambda: client.try_receive() is not None, "an response")
