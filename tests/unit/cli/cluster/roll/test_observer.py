"""What the command reads of brokers: over real sockets, from brokers that respond, disconnect or are away."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cli.cluster.roll import observer
from kbroker.cli.cluster.roll.cluster_view import BrokerAddress, BrokerProcess
from kbroker.cli.cluster.roll.observer import Observer, first_view
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions.partition_health import PartitionHealth
from protocol.apis import ApiKey
from protocol.framing import SIZE_BYTES, encode_frame, encode_response_header
from protocol.messages.k03_metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from protocol.messages.k60_describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from protocol.messages.k10003_describe_broker import DescribeBrokerResponse
from protocol.schema.codec import encode
from protocol.schema.message import Message

Responses = dict[int, Callable[[], Message]]


class FakeBroker:
    """Responds to one request of each connection, and disconnects if it has no response."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                frame = stream.read(int.from_bytes(stream.read(SIZE_BYTES), "big"))
                key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
                correlation_id = int.from_bytes(frame[4:8], "big")
                if key in self._responses:
                    head = encode_response_header(key, version, correlation_id)
                    connection.sendall(encode_frame(head, encode(self._responses[key](), version)))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def metadata() -> MetadataResponse:
    row = MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1])
    deleted = MetadataResponseTopic(error_code=3, name="deleted")
    return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[row]), deleted])


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Observer]]:
    """Start brokers 1, 2, ... with these responses to DescribeBroker, None for one that disconnects."""
    running: list[FakeBroker] = []

    def start_brokers(*processes: DescribeBrokerResponse | None) -> Observer:
        known: list[DescribeClusterBroker] = []
        for number, process in enumerate(processes, 1):
            responses: Responses = {
                ApiKey.METADATA: metadata,
                ApiKey.DESCRIBE_CLUSTER: lambda: DescribeClusterResponse(controller_id=2, brokers=known),
            }
            if process is not None:
                responses[ApiKey.DESCRIBE_BROKER] = lambda process=process: process  # type: ignore[misc]
            running.append(FakeBroker(responses))
            known.append(DescribeClusterBroker(broker_id=number, host="127.0.0.1", port=running[-1].port, rack="a"))
        rows = [{"broker_id": b.broker_id, "host": b.host, "port": b.port, "rack": b.rack} for b in known]

        @contextmanager
        def admin_client(bootstrap: str) -> Iterator[Any]:
            yield SimpleNamespace(describe_cluster=lambda: {"brokers": rows})

        monkeypatch.setattr(observer, "admin_client", admin_client)
        monkeypatch.setattr(observer, "min_isr_by_topic", lambda client, topics: dict.fromkeys(topics, 2))
        return Observer("any:9092")

    yield start_brokers
    for broker in running:
        broker.close()


def described(broker: int, epoch: int = 7) -> DescribeBrokerResponse:
    return DescribeBrokerResponse(broker_id=broker, broker_epoch=epoch, started_ms=1000, software_version="1.0")


def test_brokers_and_partitions(start: Callable[..., Observer]) -> None:
    view = first_view(start(described(1), described(2, -1)))
    assert view.controller == 2
    assert view.processes == {1: BrokerProcess(7, 1000, "1.0"), 2: BrokerProcess(-1, 1000, "1.0")}
    assert (view.brokers[1].host, view.brokers[1].rack) == ("127.0.0.1", "a")
    assert view.partitions == {("t", 0): PartitionHealth(1, [1, 2], [1], 2)}
    assert view.absent() == [2]


def test_a_broker_that_does_not_respond_is_away(start: Callable[..., Observer]) -> None:
    # The second one disconnects, and the third one is another broker at the address.
    view = first_view(start(described(1), None, described(1)))
    assert list(view.processes) == [1]
    assert view.absent() == [2, 3]


def test_brokers_of_another_program_are_refused(start: Callable[..., Observer]) -> None:
    with pytest.raises(CliError, match="do not report when they were started"):
        first_view(start(None, None))


def test_addresses() -> None:
    assert str(BrokerAddress("host", 9092)) == "host:9092"
    assert str(BrokerAddress("::1", 9092)) == "[::1]:9092"
