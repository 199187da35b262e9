"""Connections by the thousand, slow ones, silent ones, and clients that ask and never read."""

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
from tests.compat.hostile.peer import Peer, create_topic, framed, produced
from tests.compat.hostile.target import MIB, Target
from tests.compat.support import eventually

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

NOW = 1_760_000_000_000


@contextmanager
def crowd(target: Target, count: int, **options: int) -> Iterator[list[Peer]]:
    """They come, and go, ten in a millisecond."""
    peers: list[Peer] = []
    try:
        for number in range(count):
            peers.append(Peer(target.bootstrap, **options))  # type: ignore[arg-type]
            if number % 10 == 0:
                target.pace()
        yield peers
    finally:
        for number, peer in enumerate(peers):
            peer.close()
            if number % 10 == 0:
                target.pace()


def test_thousands_of_silent_connections(target: Target) -> None:
    def attack() -> None:
        with crowd(target, 2000):
            target.wait_for_round_trips()

    target.attacked("2,000 connections that never send", attack)


def test_connections_that_come_and_go(target: Target) -> None:
    frame = framed(ApiVersionsRequest(client_software_name="hostile", client_software_version="1"), 3)

    def attack() -> None:
        for number in range(2000):
            peer = Peer(target.bootstrap)
            if number % 3:
                peer.send(frame[: number % len(frame)])
            peer.close()
            if number % 5 == 0:
                target.pace()

    target.attacked("2,000 connections that come and go", attack)


def test_a_byte_a_second(target: Target) -> None:
    """500 clients whose requests arrive bit by bit; none is ever whole."""
    frame = framed(MetadataRequest(topics=None), 12)

    def attack() -> None:
        with crowd(target, 500) as peers:
            for pos in range(4):
                for number, peer in enumerate(peers):
                    assert peer.send(frame[pos : pos + 1])
                    if number % 5 == 0:
                        target.pace()

    target.attacked("500 clients of a byte a second", attack)


def test_slow_requests_are_served_when_they_are_whole(target: Target) -> None:
    frame = framed(MetadataRequest(topics=[]), 12)
    with Peer(target.bootstrap) as peer:
        for pos in range(len(frame)):
            assert peer.send(frame[pos : pos + 1])
        assert peer.answer() is not None


def test_half_open_connections(target: Target) -> None:
    """500 clients that have sent half of a request of 60 KB and then nothing."""
    batch = bytes(build_batch([(NOW, b"k", b"v" * 60_000, ())]))
    half = struct.pack(">i", 60_000) + encode_request_header(ApiKey.PRODUCE, 9, 1, "hostile") + batch[:30_000]

    def attack() -> None:
        with crowd(target, 500) as peers:
            for peer in peers:
                assert peer.send(half)
                target.pace()
            target.wait_for_round_trips()

    target.attacked("500 halves of 60 KB", attack)


# Clients that do not read.


@pytest.fixture(scope="module")
def large_topic(shared_target: Target) -> str:
    """30 MB of records."""
    create_topic(shared_target.bootstrap, "large", 1)
    batch = bytes(build_batch([(NOW, None, bytes(1_000_000), ())]))
    with Peer(shared_target.bootstrap, "setup") as peer:
        for _ in range(30):
            assert produced(peer, "large", batch) == 0
    return "large"


def fill(target: Target, peers: list[Peer], frame: bytes, rounds: int) -> None:
    """Send requests as long as the broker takes them, and read nothing."""
    selector = selectors.DefaultSelector()
    left = {}
    for peer in peers:
        peer.socket.setblocking(False)
        selector.register(peer.socket, selectors.EVENT_WRITE, peer)
        left[peer] = b""
    for _ in range(rounds):
        for key, _ in selector.select(0):
            data = left[key.data] or frame
            try:
                left[key.data] = data[key.data.socket.send(data) :]
            except BlockingIOError:
                continue
            except ConnectionError:
                selector.unregister(key.fileobj)
            target.pace(0.2)
        target.pace()


def fetch(topic: str) -> bytes:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    return framed(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=topics), 11)


def test_fetches_that_are_never_read(target: Target, large_topic: str) -> None:
    """50 clients that each ask for 30 MB ten times and more."""

    def attack() -> None:
        with crowd(target, 50, receive_buffer=4096) as peers:
            fill(target, peers, fetch(large_topic), 20)
            target.wait_for_round_trips(60)

    target.attacked("50 fetchers that never read", attack)


@pytest.fixture(scope="module")
def many_topics(shared_target: Target) -> None:
    """Of 900 partitions in all."""
    for number in range(3):
        create_topic(shared_target.bootstrap, f"wide-{number}", 300)


def test_metadata_that_is_never_read(target: Target, many_topics: None) -> None:
    frame = framed(MetadataRequest(topics=None), 12) * 4

    def attack() -> None:
        with crowd(target, 50, receive_buffer=4096) as peers:
            fill(target, peers, frame, 10)
            target.wait_for_round_trips(60)

    target.attacked("50 askers for metadata that never read", attack)


def test_requests_behind_one_that_waits(target: Target) -> None:
    """100 clients that wait for records and send on and on meanwhile."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    create_topic(target.bootstrap, "empty")
    topics = [FetchTopic(topic="empty", partitions=[wanted])]
    waiting = framed(FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=1000, topics=topics), 11)
    behind = framed(MetadataRequest(topics=[]), 12) * 3000

    def attack() -> None:
        with crowd(target, 100) as peers:
            for peer in peers:
                peer.send(waiting)
            fill(target, peers, behind, 20)
            target.wait_for_round_trips(100)

    target.attacked("100 clients that send on while they wait", attack)
    with Peer(target.bootstrap) as peer:
        assert peer.send(framed(ApiVersionsRequest(), 0))
        eventually(lambda: peer.answer() is not None, "an answer")
