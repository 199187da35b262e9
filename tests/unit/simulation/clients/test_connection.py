"""Connections: order of responses, deadlines, loss, versions."""

import asyncio
from collections.abc import Iterator

import pytest

from kbroker.simulation.clients.connections.cluster import Cluster, UnavailableError
from kbroker.simulation.clients.connections.connection import ConnectionLostError, SimClientConnection, connect
from kbroker.simulation.clients.connections.versions import STATIC_MEMBERS, draw_older_versions
from protocol.apis import APIS, ApiKey
from protocol.client import Response, UnexpectedResponseError, UnsupportedVersionError
from protocol.framing import encode_frame, encode_response_header
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from protocol.schema.codec import encode
from tests.unit.simulation.clients.program import Program, client_test
from tests.unit.support.simulated_broker import HOST, PORT, Machine, broker_test

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


async def connected(
    machine: Machine, caps: dict[int, int] | None = None, timeout_s: float = 5.0
) -> SimClientConnection:
    return await connect(machine.loop, (HOST, PORT), "client", caps or {}, timeout_s)


@broker_test
async def test_several_requests_are_in_flight(machine: Machine) -> None:
    connection = await connected(machine)
    requests = [connection.request(MetadataRequest(topics=[]), MetadataResponse) for _ in range(20)]
    responses = await asyncio.gather(*requests)
    assert [response.brokers[0].host for response in responses] == [HOST] * 20
    connection.close()


@client_test(partitions=0, is_checked=False)
async def test_late_response_closes_the_connection(program: Program) -> None:
    connection = await connected(program.machine, timeout_s=3)
    began = program.machine.loop.time()
    program.cut_responses()
    requests = [connection.request(MetadataRequest(topics=[]), MetadataResponse, timeout_s=s) for s in (20, 3, 8)]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLostError] * 3
    assert program.machine.loop.time() - began == pytest.approx(3)
    with pytest.raises(ConnectionLostError, match="closed"):
        await connection.request(MetadataRequest(topics=[]), MetadataResponse)
    program.heal()


@broker_test
async def test_response_before_the_deadline_keeps_the_connection(machine: Machine) -> None:
    connection = await connected(machine, timeout_s=3)
    for _ in range(4):
        await connection.request(MetadataRequest(topics=[]), MetadataResponse)
        await asyncio.sleep(2)
    assert not connection.lost
    connection.close()


@client_test(partitions=0, is_checked=False)
async def test_reset_loses_the_requests_in_flight(program: Program) -> None:
    connection = await connected(program.machine)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    asked = program.machine.loop.create_task(connection.request(request, JoinGroupResponse))
    await asyncio.sleep(0)
    program.reset_connections()
    with pytest.raises(ConnectionLostError):
        await asked
    assert connection.lost


@broker_test(started=False)
async def test_connecting_without_a_broker_fails(machine: Machine) -> None:
    with pytest.raises(ConnectionRefusedError):
        await connected(machine)


@broker_test
async def test_versions_are_supported_by_both_sides(machine: Machine) -> None:
    connection = await connected(machine, {ApiKey.FETCH: 7, ApiKey.PRODUCE: 99})
    assert connection.version(ApiKey.FETCH) == 7
    assert connection.version(ApiKey.PRODUCE) == APIS[ApiKey.PRODUCE].max_version
    assert connection.version(ApiKey.METADATA) == APIS[ApiKey.METADATA].max_version
    connection.close()
    old = await connected(machine, {ApiKey.FETCH: 2, ApiKey.API_VERSIONS: 0})
    with pytest.raises(UnsupportedVersionError, match="FETCH: the broker supports 4 to 18, the client 4 to 2"):
        old.version(ApiKey.FETCH)
    old.close()


def test_older_clients_have_usable_versions() -> None:
    from random import Random

    seen = set()
    for seed in range(300):
        caps = draw_older_versions(Random(seed), static_members=seed % 2 == 0)
        seen.add(caps[ApiKey.PRODUCE])
        if caps[ApiKey.METADATA] < 10:
            assert caps[ApiKey.FETCH] <= 12
            assert caps[ApiKey.PRODUCE] <= 12
        if seed % 2 == 0:
            assert all(caps[key] >= first for key, first in STATIC_MEMBERS.items())
        assert all(APIS[key].min_version <= cap <= APIS[key].max_version for key, cap in caps.items())
    assert seen == set(range(3, 14))


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written.append(data)

    def abort(self) -> None:
        pass


def response_frame(correlation_id: int) -> bytes:
    header = encode_response_header(ApiKey.HEARTBEAT, 4, correlation_id)
    return encode_frame(header, encode(HeartbeatResponse(), 4))


@pytest.fixture
def connection() -> Iterator[SimClientConnection]:
    """A connection whose broker is played by the test."""
    loop = asyncio.new_event_loop()
    connection = SimClientConnection(loop, "client", {}, 5.0)
    connection.connection_made(_Transport())
    yield connection
    connection.close()
    loop.close()


def test_each_response_is_passed_to_the_callback_of_its_request(connection: SimClientConnection) -> None:
    received: list[tuple[int, Response | None]] = []
    for number in (1, 2, 3):
        connection.send(HEARTBEAT, 4, lambda response, number=number: received.append((number, response)))  # type: ignore[misc]
    stream = b"".join(response_frame(number) for number in (1, 2, 3))
    for byte in stream[:-1]:
        connection.data_received(bytes((byte,)))
    assert len(received) == 2
    connection.data_received(stream[-1:])
    assert [number for number, _ in received] == [1, 2, 3]
    assert [response.correlation_id for _, response in received if response] == [1, 2, 3]


def test_no_response_is_passed_on_after_a_callback_has_closed_the_connection(connection: SimClientConnection) -> None:
    received: list[Response | None] = []

    def close(response: Response | None) -> None:
        connection.close()

    connection.send(HEARTBEAT, 4, close)
    connection.send(HEARTBEAT, 4, received.append)
    connection.data_received(response_frame(1) + response_frame(2))
    assert received == [None]


def test_a_response_out_of_order_is_an_error(connection: SimClientConnection) -> None:
    for _ in range(2):
        connection.send(HEARTBEAT, 4, lambda response: None)
    with pytest.raises(UnexpectedResponseError, match="correlation id 2, expected 1"):
        connection.data_received(response_frame(2))


@client_test(partitions=2)
async def test_unknown_leader_is_looked_up(program: Program) -> None:
    cluster = program.cluster("c")
    assert cluster.open_leader_connection(("t", 0)) is None
    first, second = await asyncio.gather(cluster.leader(("t", 0)), cluster.leader(("t", 1)))
    assert first is second is cluster.open_leader_connection(("t", 1))
    with pytest.raises(UnavailableError, match="no leader of t-7"):
        await cluster.leader(("t", 7))
    assert cluster.partitions(["t", "u"]) == [("t", 0), ("t", 1)]
    await program.machine.stop()
    with pytest.raises(ConnectionError):
        await cluster.leader(("t", 0))
    # A node that cannot be reached is looked up again.
    assert cluster.leaders == {}


@client_test
async def test_cancelled_caller_does_not_cancel_a_shared_connect(program: Program) -> None:
    cluster: Cluster = program.cluster("c")
    await cluster.refresh_metadata(["t"])
    tasks = [program.machine.loop.create_task(cluster.leader(("t", 0))) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert not (await tasks[1]).lost
