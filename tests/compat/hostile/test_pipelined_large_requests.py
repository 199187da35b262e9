"""Connections with several large requests in flight are served in turns, with real sockets.

No time is measured: the base offsets of one partition say in which order the broker has handled the requests.
"""

import selectors
import socket
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from struct import Struct

import pytest

from protocol.messages.k00_produce import ProduceResponse
from protocol.records.batch import build_batch
from protocol.schema.codec import decode
from tests.compat.hostile.raw_client import NOW, PRODUCE_VERSION, create_topic, framed, produce_request
from tests.compat.support import need_own_broker, running_broker

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

TOPIC = "turns"
CONNECTIONS = 4
REQUESTS = 60
# As producers have with default settings.
IN_FLIGHT = 5
REQUEST_BYTES = 512 * 1024
# Requests of one connection that the broker may handle before one of another that has arrived before they were sent.
# A connection's turn has three requests: up to 4 were measured. Without turns it was 8 to 12.
MAX_OVERTAKING = 6
_SIZE = Struct(">i")


@dataclass
class Request:
    """`began` and `sent`: when its first byte, and its last, were accepted by the kernel. `offset`: its base offset."""

    began: int
    sent: int = 0
    offset: int = -1


@dataclass
class Client:
    """A connection that sends the same request again and again, IN_FLIGHT of them without a response."""

    socket: socket.socket
    frame: memoryview
    requests: list[Request] = field(default_factory=list)
    responses: int = 0
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)

    def send(self, events: "count[int]") -> None:
        while True:
            if not self.unsent:
                if len(self.requests) == min(REQUESTS, self.responses + IN_FLIGHT):
                    return
                self.unsent = self.frame
                self.requests.append(Request(next(events)))
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
            except BlockingIOError:
                return
            if not self.unsent:
                self.requests[-1].sent = next(events)

    def receive(self) -> None:
        try:
            self.received += self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        while len(self.received) >= 4 and len(self.received) >= 4 + _SIZE.unpack_from(self.received)[0]:
            end = 4 + _SIZE.unpack_from(self.received)[0]
            # The header has a correlation id and no tagged fields.
            response = decode(ProduceResponse, bytes(self.received[9:end]), PRODUCE_VERSION)
            del self.received[:end]
            partition = response.responses[0].partition_responses[0]
            assert partition.error_code == 0
            self.requests[self.responses].offset = partition.base_offset
            self.responses += 1


def run(bootstrap: str) -> list[list[Request]]:
    """Send all requests of all connections, and return them when they have their responses."""
    records = bytes(build_batch([(NOW, None, bytes(REQUEST_BYTES), ())]))
    frame = memoryview(framed(produce_request(TOPIC, records), PRODUCE_VERSION))
    events = count()
    host, port = bootstrap.split(":")
    clients = [Client(socket.create_connection((host, int(port))), frame) for _ in range(CONNECTIONS)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.socket.setblocking(False)
            selector.register(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, client)
        while any(client.responses < REQUESTS for client in clients):
            for key, _ in selector.select():
                key.data.receive()
                key.data.send(events)
    for client in clients:
        client.socket.close()
    return [client.requests for client in clients]


def overtaking(all_requests: list[list[Request]]) -> int:
    """Return the most requests of one connection that were handled before one which could have been handled before any
    of them was sent: it had arrived, and the request before it on its connection was handled."""
    most = 0
    for requests in all_requests:
        for before, request in pairwise(requests):
            for others in all_requests:
                if others is not requests:
                    later = [
                        other
                        for other in others
                        if other.began > request.sent and before.offset < other.offset < request.offset
                    ]
                    most = max(most, len(later))
    return most


def test_no_connection_is_overtaken_again_and_again(tmp_path: Path) -> None:
    need_own_broker()
    with running_broker(tmp_path) as broker:
        create_topic(broker.bootstrap, TOPIC)
        assert overtaking(run(broker.bootstrap)) <= MAX_OVERTAKING
        broker.stop()
