"""Connections of a whole broker: how many there may be, how long they stay, what slow ones cost."""

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
from tests.unit.support.simulated_broker import CONFIGS, HOST, HOUR, MINUTE, PORT, Machine, story

MIB = 1 << 20


async def greet(client: Client) -> None:
    answer = await client.request(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert answer.error_code == 0


@story(max_connections=3)
async def test_max_connections(m: Machine) -> None:
    clients = [await m.client() for _ in range(3)]
    for client in clients:
        await greet(client)
    one_too_many = await m.client()
    await one_too_many.closed
    clients[0].close()
    await asyncio.sleep(0.01)
    await greet(await m.client())


@story(max_connections_per_ip=2, max_connections_per_ip_overrides="busy:3, blocked:0")
async def test_max_connections_per_ip(m: Machine) -> None:
    for host, most in (("one", 2), ("two", 2), ("busy", 3), ("blocked", 0)):
        clients = [await m.client(host) for _ in range(most)]
        for client in clients:
            await greet(client)
        one_too_many = await m.client(host)
        await one_too_many.closed
    await (await m.client("three")).request(ApiVersionsRequest(), 0, ApiVersionsResponse)


@story
async def test_limits_follow_the_dynamic_configs(m: Machine) -> None:
    client = await m.client()
    await client.alter_broker(max_connections=2)
    other = await m.client()
    await greet(other)
    await (await m.client()).closed
    await client.alter_broker(max_connections=3)
    await greet(await m.client())
    await greet(other)


def testparse_limits_by_host_leave_out_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_limits_by_host("") == {}
    assert parse_limits_by_host("a:1,[::1]:20, b : x,:4, 10.0.0.1:0") == {"a": 1, "::1": 20, "10.0.0.1": 0}
    assert len(caplog.records) == 2


@story(connections_max_idle_ms=60_000)
async def test_idle_connections_are_closed(m: Machine) -> None:
    idle, busy = await m.client(), await m.client()
    await greet(idle)
    began = m.loop.time()
    for _ in range(20):
        await greet(busy)
        await asyncio.sleep(10)
    assert idle.closed.done()
    assert not busy.closed.done()
    await busy.closed
    assert m.loop.time() - began < 200 + 2 * 60 + 20


@story(connections_max_idle_ms=60_000)
async def test_who_waits_for_an_answer_is_not_idle(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=int(HOUR * 1000))
    await asyncio.sleep(59 * MINUTE)
    assert not client.closed.done()
    await waiting
    await asyncio.sleep(30)
    assert not client.closed.done()
    await client.closed


@story
async def test_a_client_that_does_not_read_costs_little_and_holds_nobody_up(m: Machine) -> None:
    slow, busy = await m.client(), await m.client()
    await slow.create_topic("t")
    for _ in range(20):
        await slow.produce("t", batch(b"v", size=500_000))
    slow.transport.pause_reading()
    answers = [slow.send_fetch({("t", 0): 0}) for _ in range(100)]
    for round in range(50):
        (value,) = values_of(await busy.fetch_partition("t", round % 20, partition_max_bytes=1))
        assert value.startswith(b"v")
    server = m.broker._server.context
    assert 0 < server.unsent_bytes < 5 * MIB
    assert m.broker.services.fetching.unsent_bytes == server.unsent_bytes
    slow.transport.resume_reading()
    for answer in await asyncio.gather(*answers):
        assert answer.responses[0].partitions[0].error_code == 0
    assert server.unsent_bytes == 0


@story
async def test_answers_shrink_as_unsent_ones_grow(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for _ in range(12):
        await client.produce("t", batch(b"v", size=900_000))
    fetching = m.broker.services.fetching

    async def answered() -> int:
        answer = await client.fetch_partition("t", 0, partition_max_bytes=20 * MIB)
        return len(values_of(answer))

    assert await answered() == 9
    fetching.unsent_bytes = MAX_UNSENT_BYTES - 10 * MIB
    assert await answered() == 2
    fetching.unsent_bytes = 500 * MIB
    assert await answered() == 1


@story
async def test_stopping_with_clients_that_wait(m: Machine) -> None:
    clients = [await m.client() for _ in range(3)]
    await clients[0].create_topic("t")
    waiting = [client.send_fetch({("t", 0): 0}, max_wait_ms=int(HOUR * 1000)) for client in clients]
    await asyncio.sleep(1)
    began = m.loop.time()
    await m.stop()
    assert m.loop.time() - began < 1
    for answer in waiting:
        with pytest.raises(ConnectionResetError):
            await answer
    with pytest.raises(ConnectionRefusedError):
        await m.client()


@story
async def test_a_client_that_goes_away_while_it_waits(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 100)
    replicas = m.broker.services.replicas
    for _ in range(20):
        one = await m.client()
        one.send_fetch({("t", index): 0 for index in range(100)}, max_wait_ms=int(HOUR * 1000))
        await m.until(lambda: len(replicas.purgatory) == 1)
        one.close()
        await m.until(lambda: len(replicas.purgatory) == 0)
    assert not any(partition.fetchers for partition in replicas.partitions.values())


def test_buffer_sizes_and_backlog_are_set_only_if_given() -> None:
    made = []

    class Socket:
        def __init__(self) -> None:
            self.options: dict[int, int] = {}

        def setsockopt(self, level: int, option: int, value: int) -> None:
            self.options[option] = value

        def getsockname(self) -> tuple[str, int]:
            return (HOST, PORT)

    class Loop(SimLoop):
        async def create_server(self, factory, host=None, port=None, **options):  # type: ignore[no-untyped-def, override]
            server = await super().create_server(factory, host, port, **options)
            server.sockets = (Socket(),)
            made.append((options["backlog"], server.sockets[0].options))
            return server

    async def bind(loop: Loop, **given: str) -> None:
        machine = Machine(loop, 1, {name.replace("_", "."): value for name, value in given.items()})
        await machine.start()
        await machine.stop()

    for given in ({}, {"socket_receive_buffer_bytes": "50000", "socket_send_buffer_bytes": "-1"}):
        loop = Loop(1)
        loop.run_until_complete(bind(loop, **given, **({"socket_listen_backlog_size": "7"} if given else {})))
        loop.close()
    always = {socket.SO_KEEPALIVE: 1}
    assert made == [(1024, always), (7, {**always, socket.SO_RCVBUF: 50000})]
    assert replace(BrokerConfig.load(CONFIGS)).socket_receive_buffer_bytes == 102_400
