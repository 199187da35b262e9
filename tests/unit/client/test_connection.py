"""A blocking connection: versions, several requests in flight, and what it says of failures."""

import socket
import threading
from collections.abc import Iterator

import pytest

from kbroker.client import connection as connection_module
from kbroker.client.connection import NEGOTIATION_TIMEOUT_S, BrokerConnection, BrokerUnreachable
from protocol.apis import ApiKey
from protocol.client import UnsupportedVersionError
from protocol.framing import encode_frame
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse
from tests.unit.support.socket_broker import SocketBroker


@pytest.fixture
def broker() -> Iterator[SocketBroker]:
    broker = SocketBroker({ApiKey.METADATA: lambda request: MetadataResponse(cluster_id="abc")})
    yield broker
    broker.close()


def connect(broker: SocketBroker, timeout_s: float = 10.0) -> BrokerConnection:
    return BrokerConnection(broker.address, client_id="test", timeout_s=timeout_s)


def test_several_requests_are_in_flight(broker: SocketBroker) -> None:
    with connect(broker) as connection:
        for _ in range(3):
            connection.send(MetadataRequest(topics=None))
        assert [connection.receive(MetadataResponse).cluster_id for _ in range(3)] == ["abc"] * 3
        assert connection.request(MetadataRequest(topics=[]), MetadataResponse).cluster_id == "abc"


def test_a_response_that_takes_long_is_reported_once(broker: SocketBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENT_FOR_S", 0.05)
    reported = threading.Event()
    waits: list[str] = []

    def report(reason: str) -> None:
        waits.append(reason)
        reported.set()

    def respond(request: object) -> MetadataResponse:
        assert reported.wait(10.0)
        return MetadataResponse(cluster_id="late")

    with connect(broker) as connection:
        connection.on_wait = report
        connection.request(MetadataRequest(topics=None), MetadataResponse)
        broker.handlers[ApiKey.METADATA] = respond
        assert connection.request(MetadataRequest(topics=None), MetadataResponse).cluster_id == "late"
        assert waits == [f"no response from 127.0.0.1:{broker.port}"]


def test_a_broker_that_does_not_read_is_reported(broker: SocketBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SILENT_FOR_S", 0.05)
    reported = threading.Event()
    broker.handlers[ApiKey.METADATA] = lambda request: MetadataResponse(cluster_id="a" if reported.wait(10.0) else "b")
    # More than the buffers of the sockets hold, while the broker is busy with the first request.
    large = MetadataRequest(topics=[MetadataRequestTopic(name="t" * 30_000)] * 500)
    with connect(broker) as connection:
        connection.on_wait = lambda reason: reported.set()
        connection.send(MetadataRequest(topics=None))
        connection.send(large)
        assert reported.is_set()
        assert [connection.receive(MetadataResponse).cluster_id for _ in range(2)] == ["a", "a"]


def test_requests_that_name_topics_have_the_last_version_with_names(broker: SocketBroker) -> None:
    with connect(broker) as connection:
        assert connection.version(ApiKey.METADATA) == 13
        versions = [connection.version(key) for key in (ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)]
        assert versions == [12, 9, 9]
        assert connection.supports(ApiKey.DESCRIBE_PRODUCERS)
        assert not connection.supports(ApiKey.FORWARD_RECORDS)


def test_own_requests_of_kbroker_have_no_version_to_negotiate(broker: SocketBroker) -> None:
    broker.handlers[ApiKey.DESCRIBE_BROKER] = lambda request: DescribeBrokerResponse(broker_id=3)
    with connect(broker) as connection:
        assert connection.request(DescribeBrokerRequest(), DescribeBrokerResponse).broker_id == 3


def test_a_field_that_the_brokers_version_lacks() -> None:
    broker = SocketBroker(max_versions={ApiKey.DESCRIBE_CLUSTER: 1})
    with connect(broker) as connection, pytest.raises(UnsupportedVersionError):
        connection.request(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    broker.close()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (None, "no response to the first request within 0.2 s"),
        (b"", "the connection was closed at the first request"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the response is not one of the Kafka protocol"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "the response is not one of the Kafka protocol"),
    ],
    ids=["silent", "closed", "HTTP", "TLS"],
)
def test_a_port_of_another_protocol(response: bytes | None, reason: str) -> None:
    """A client that waited for the usual time of a request would be silent for half a minute."""
    assert NEGOTIATION_TIMEOUT_S <= 5
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(response or b"")
                if response is None:
                    connection.recv(1000)  # until the client has closed it

        server = threading.Thread(target=respond)
        server.start()
        with pytest.raises(BrokerUnreachable, match=reason + ": is this the port of a Kafka broker"):
            BrokerConnection(listener.getsockname(), client_id="test", timeout_s=0.2 if response is None else 5)
        server.join()


def test_a_broker_that_disconnects(broker: SocketBroker) -> None:
    """As Apache Kafka does at a request that it does not know."""
    connection = connect(broker)
    with pytest.raises(BrokerUnreachable, match="the broker closed the connection") as failure:
        connection.request(DescribeBrokerRequest(), DescribeBrokerResponse)
    assert failure.value.address == f"127.0.0.1:{broker.port}"
    assert not connection.is_open
    with pytest.raises(BrokerUnreachable, match="the connection is closed"):
        connection.request(MetadataRequest(topics=[]), MetadataResponse)


@pytest.mark.parametrize("response", [encode_frame(b"\0\0\0\x63", b""), encode_frame(b"\0\0\0\x02", b"\xff\xff")])
def test_a_response_that_cannot_be_decoded(broker: SocketBroker, response: bytes) -> None:
    broker.handlers[ApiKey.METADATA] = lambda request: response
    connection = connect(broker)
    with pytest.raises(BrokerUnreachable, match="malformed response"):
        connection.request(MetadataRequest(topics=[]), MetadataResponse)
    assert not connection.is_open


def test_nobody_listens(broker: SocketBroker) -> None:
    broker.close()
    with pytest.raises(BrokerUnreachable) as failure:
        connect(broker)
    assert failure.value.strerror == "Connection refused"
