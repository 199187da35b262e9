"""Connections of a broker: limits, idle and slow connections, stopping."""

import asyncio
import socket
from dataclasses import replace

import pytest

from kbroker.config import BrokerConfig
from kbroker.replica.fetch.fetch_manager import MAX_UNSENT_BYTES
from kbroker.server.socket_server import parse_limits_by_host
from kbroker.simulation.runtime.loop import SimLoop
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.unit.support.client import Client, batch, values_of
from tests.unit.support.simulated_broker import CONFIGS, HOST, HOUR, MINUTE, PORT, Machine, broker_test

MIB = 1 << 20


async def request_api_versions(client: Client) -> None:
    response = await client.request(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert response.error_code == 0


@broker_test(max_connections=3)
async def test_max_connections(m: Machine) -> None:
    clients = [await m.client() for _ in range(3)]
    for client in clients:
        await request_api_versions(client)
    rejected = await m.client()
    await rejected.closed
    clients[0].close()
    await asyncio.sleep(0.01)
    await request_api_versions(await m.client())


@broker_test(max_connections_per_ip=2, max_connections_per_ip_overrides="busy:3, blocked:0")
async def test_max_connections_per_ip(m: Machine) -> None:
    for host, limit in (("one", 2), ("two", 2), ("busy", 3), ("blocked", 0)):
        clients = [await m.client(host) for _ in range(limit)]
        for client in clients:
            await request_api_versions(client)
        rejected = await m.client(host)
        await rejected.closed
    await (await m.client("three")).request(ApiVersionsRequest(), 0, ApiVersionsResponse)


@broker_test
async def test_limits_follow_the_dynamic_configs(m: Machine) -> None:
    client = await m.client()
    await client.alter_broker(max_connections=2)
    other = await m.client()
    await request_api_versions(other)
    await (await m.client()).closed
    await client.alter_broker(max_connections=3)
    await request_api_versions(await m.client())
    await request_api_versions(other)


def test_parse_limits_by_host_ignores_invalid_pairs(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_limits_by_host("") == {}
    assert parse_limits_by_host("a:1,[::1]:20, b : x,:4, 10.0.0.1:0") == {"a": 1, "::1": 20, "10.0.0.1": 0}
    assert len(caplog.records) == 2


@broker_test(connections_max_idle_ms=60_000)
async def test_idle_connections_are_closed(m: Machine) -> None:
    idle, busy = await m.client(), await m.client()
    await request_api_versions(idle)
    began = m.loop.time()
    for _ in range(20):
        await request_api_versions(busy)
        await asyncio.sleep(10)
    assert idle.closed.done()
    assert not busy.closed.done()
    await busy.closed
    assert m.loop.time() - began < 200 + 2 * 60 + 20


@broker_test(connections_max_idle_ms=60_000)
async def test_a_connection_that_waits_for_a_response_is_not_idle(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=int(HOUR * 1000))
    await asyncio.sleep(59 * MINUTE)
    assert not client.closed.done()
    await waiting
    await asyncio.sleep(30)
    assert not client.closed.done()
    await client.closed


@broker_test
async def test_a_client_that_does_not_read_needs_little_memory_and_delays_no_other(m: Machine) -> None:
    slow, busy = await m.client(), await m.client()
    await slow.create_topic("t")
    for _ in range(20):
        await slow.produce("t", batch(b"v", size=500_000))
    slow.transport.pause_reading()
    responses = [slow.send_fetch({("t", 0): 0}) for _ in range(100)]
    for round in range(50):
        (value,) = values_of(await busy.fetch_partition("t", round % 20, partition_max_bytes=1))
        assert value.startswith(b"v")
    server = m.broker._server.context
    assert 0 < server.unsent_bytes < 5 * MIB
    assert m.broker.services.fetching.unsent_bytes == server.unsent_bytes
    slow.transport.resume_reading()
    for response in await asyncio.gather(*responses):
        assert response.responses[0].partitions[0].error_code == 0
    assert server.unsent_bytes == 0


@broker_test
async def test_fetch_responses_shrink_as_unsent_bytes_grow(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for _ in range(12):
        await client.produce("t", batch(b"v", size=900_000))
    fetching = m.broker.services.fetching

    async def fetch_batches() -> int:
        response = await client.fetch_partition("t", 0, partition_max_bytes=20 * MIB)
        await m.until(lambda: m.broker._server.context.unsent_bytes == 0)
        return len(values_of(response))

    assert await fetch_batches() == 9
    fetching.unsent_bytes = MAX_UNSENT_BYTES - 10 * MIB
    assert await fetch_batches() == 2
    fetching.unsent_bytes = 500 * MIB
    assert await fetch_batches() == 1


@broker_test
async def test_stopping_with_waiting_requests(m: Machine) -> None:
    clients = [await m.client() for _ in range(3)]
    await clients[0].create_topic("t")
    waiting = [client.send_fetch({("t", 0): 0}, max_wait_ms=int(HOUR * 1000)) for client in clients]
    await asyncio.sleep(1)
    began = m.loop.time()
    await m.stop()
    assert m.loop.time() - began < 1
    for response in waiting:
        with pytest.raises(ConnectionResetError):
            await response
    with pytest.raises(ConnectionRefusedError):
        await m.client()


@broker_test
async def test_a_client_that_disconnects_while_it_waits(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 100)
    replicas = m.broker.services.replicas
    for _ in range(20):
        other = await m.client()
        other.send_fetch({("t", index): 0 for index in range(100)}, max_wait_ms=int(HOUR * 1000))
        await m.until(lambda: len(replicas.purgatory) == 1)
        other.close()
        await m.until(lambda: len(replicas.purgatory) == 0)
    assert not any(partition.fetchers for partition in replicas.partitions.values())


def test_buffer_sizes_and_backlog() -> None:
    bound = []

    class Socket:
        def __init__(self) -> None:
            self.options: dict[int, int] = {}

        def setsockopt(self, level: int, option: int, value: int) -> None:
            self.options[option] = value

        def fileno(self) -> int:
            return 0

        def getsockname(self) -> tuple[str, int]:
            return (HOST, PORT)

    class Loop(SimLoop):
        async def create_server(self, factory, host=None, port=None, **options):  # type: ignore[no-untyped-def, override]
            server = await super().create_server(factory, host, port, **options)
            server.sockets = (Socket(),)
            bound.append((options["backlog"], server.sockets[0].options))
            return server

    async def bind(loop: Loop, **configs: str) -> None:
        machine = Machine(loop, 1, {name.replace("_", "."): value for name, value in configs.items()})
        await machine.start()
        await machine.stop()

    for configs in ({}, {"socket_receive_buffer_bytes": "50000", "socket_send_buffer_bytes": "-1"}):
        loop = Loop(1)
        loop.run_until_complete(bind(loop, **configs, **({"socket_listen_backlog_size": "7"} if configs else {})))
        loop.close()
    always = {socket.SO_KEEPALIVE: 1}
    assert bound == [
        (1024, {**always, socket.SO_SNDBUF: 102_400}),
        (7, {**always, socket.SO_RCVBUF: 50000}),
    ]
    assert replace(BrokerConfig.load(CONFIGS)).socket_receive_buffer_bytes == 102_400
