"""Clients that are slow, or ask for much, do not slow down replication: acknowledgements come at once, ISRs stay.

`KBROKER_COMPAT_SECONDS` is the duration of the load on the in-sync replicas.
"""

import os
import selectors
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Producer

from protocol.framing import SIZE_BYTES
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.k03_metadata import MetadataRequest
from protocol.messages.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.schema.message import Message
from tests.compat.cluster.cluster import IS_KBROKER, SETTINGS, Cluster
from tests.compat.cluster.work import create_topic, working
from tests.compat.hostile.raw_client import RawClient, framed
from tests.compat.support import DEADLINE_S

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

# How long a follower's fetch waits for records (replica.fetch.wait.max.ms).
LONG_POLL_S = 0.5
# Longer than a follower may be behind.
SECONDS = float(os.environ.get("KBROKER_COMPAT_SECONDS", "0")) or int(SETTINGS["replica.lag.time.max.ms"]) / 1000 + 2
COLD_BYTES = 16 << 20
BROKER = 4  # the resource type


def round_trips(cluster: Cluster, topic: str, count: int) -> list[float]:
    """Return how long each of several records takes until it is acknowledged, in seconds, one after another."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "acks": "all", "log_level": 2})
    times = []
    for number in range(count + 1):
        start = time.monotonic()
        producer.produce(topic, b"x", partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0
        times.append(time.monotonic() - start)
    return times[1:]


@pytest.mark.parametrize("flush", ["false", "true"])
def test_acknowledgements_do_not_wait_for_long_polls(cluster: Cluster, flush: str) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [1, 3, 2]], {"flush.before.ack": flush})
    assert statistics.median(round_trips(cluster, topic, 20)) < LONG_POLL_S / 2


class Flood:
    """Connections to one broker that always have several requests in flight."""

    IN_FLIGHT = 10

    def __init__(self, bootstrap: str, connections: int, request: Message, version: int) -> None:
        self.responses = 0
        self._frame = framed(request, version)
        self._clients = [RawClient(bootstrap, "flood") for _ in range(connections)]
        self._buffers = {client: bytearray() for client in self._clients}
        self._selector = selectors.DefaultSelector()
        for client in self._clients:
            client.send(self._frame * self.IN_FLIGHT)
            self._selector.register(client.socket, selectors.EVENT_READ, client)

    def run(self, seconds: float) -> None:
        """Replace each response by another request, for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                client: RawClient = key.data
                received = client.socket.recv(1 << 20)
                assert received, "the broker has closed the connection"
                client.send(self._frame * self._take(self._buffers[client], received))

    def close(self) -> None:
        self._selector.close()
        for client in self._clients:
            client.close()

    def _take(self, buffer: bytearray, received: bytes) -> int:
        """Return the number of responses that are complete now."""
        buffer += received
        count = position = 0
        while len(buffer) >= position + SIZE_BYTES:
            end = position + SIZE_BYTES + int.from_bytes(buffer[position : position + SIZE_BYTES], "big")
            if len(buffer) < end:
                break
            count, position = count + 1, end
        del buffer[:position]
        self.responses += count
        return count


@contextmanager
def readers_that_never_read(bootstrap: str, topic: str, connections: int) -> Iterator[None]:
    """Consumers that fetch from the start of a topic, again and again, and take no response from their sockets."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=4 << 20)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=4 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    frame = framed(request, 11)
    with ExitStack() as stack:
        for _ in range(connections):
            client = stack.enter_context(RawClient(bootstrap, "reader", receive_buffer_bytes=4096))
            client.send(frame * 5)
        yield


def fill(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    for _ in range(COLD_BYTES // 65_536):
        producer.produce(topic, bytes(65_536), partition=0)
    assert producer.flush(DEADLINE_S) == 0


def test_cold_readers_and_a_flood_of_admin_requests_shrink_no_isr(cluster: Cluster) -> None:
    leader, *others = cluster.brokers
    cold = create_topic(cluster, [[leader, *others]])
    fill(cluster, cold)
    topic = create_topic(cluster, [[leader, *others], [*others, leader]])
    configs = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=BROKER, resource_name="1")])
    bootstrap = cluster.brokers[leader].bootstrap
    with working(cluster, topic, 2) as work, readers_that_never_read(bootstrap, cold, 50), ExitStack() as stack:
        floods = [Flood(bootstrap, 10, configs, 4), Flood(bootstrap, 10, MetadataRequest(topics=None), 9)]
        for flood in floods:
            stack.callback(flood.close)
        end = time.monotonic() + SECONDS
        views = 0
        while time.monotonic() < end:
            for flood in floods:
                flood.run(0.2)
            for view in cluster.views().values():
                views += view is not None
                assert view is None or view.is_fully_replicated
        assert views
        assert all(flood.responses for flood in floods)
        work.wait_for_more()
