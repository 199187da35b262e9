"""What happens to connections when links, hosts and middleboxes fail. Each test runs with several seeds."""

import asyncio

import pytest

from kbroker.simulation.network.tcp import SOCKET_BUFFER, TCP_TIMEOUT_S
from tests.unit.support.simulated_hosts import simulated
from tests.unit.support.simulated_network import (
    BROKER,
    CLIENT,
    ListeningBroker,
    assert_reset,
    simulated_pair,
)

SEEDS = range(5)

network_test = simulated(ListeningBroker, SEEDS)
pair_test = simulated_pair(SEEDS)


# Hosts.


def test_the_connections_of_a_killed_process_are_closed_or_reset():
    outcomes = set()

    async def test(s: ListeningBroker) -> None:
        client, broker = await s.pair()
        writing, other = await s.pair()
        writing.keeps_open = True
        broker.write(b"response" * 100_000)
        other.write(b"response")
        s.crash(BROKER, silent=False)
        writing.write(b"?")
        await assert_reset(writing)
        error = await client.lost
        assert s.loop.time() < 1
        assert len(client.received) == (SOCKET_BUFFER if error is None else 0), "only the kernel's buffer survives"
        assert error is None or isinstance(error, ConnectionResetError)
        assert client.events[1:] == (["eof", "lost"] if error is None else ["lost"])
        assert broker.events == ["made", "pause"], "a dead process receives no call"
        outcomes.add(error is None)
        with pytest.raises(ConnectionRefusedError):
            await s.connect()
        await s.listen()
        await s.connect()

    for seed in range(20):
        ListeningBroker(seed).run(test)
    assert outcomes == {True, False}


@network_test
async def test_peers_notice_a_power_loss_only_when_they_write(s):
    client, _ = await s.pair()
    s.crash(BROKER, silent=True)
    await asyncio.sleep(1000)
    assert client.is_open
    before = s.loop.time()
    client.write(b"?")
    assert isinstance(await client.lost, TimeoutError)
    least, most = TCP_TIMEOUT_S
    assert least <= s.loop.time() - before <= most + 0.1


# Links.


@pair_test
async def test_a_long_partition_closes_connections_with_bytes_in_flight(s, client, broker):
    aborted, half_open = await s.pair()
    idle, idle_peer = await s.pair()
    s.faults.partition(CLIENT, BROKER)
    client.write(b"request")
    aborted.transport.abort()
    assert isinstance(await client.lost, TimeoutError)
    s.faults.heal_all()
    await asyncio.sleep(100)
    for peer in (broker, half_open):
        assert peer.is_open, "it has not sent anything"
        peer.write(b"?")
        await assert_reset(peer)
    assert idle.is_open
    idle.write(b"request")
    await s.until(lambda: idle_peer.received)


@pair_test
async def test_a_one_way_cut_of_responses(s, client, broker):
    """Requests arrive, their acknowledgements do not."""
    s.faults.cut(BROKER, CLIENT)
    client.write(b"request")
    await s.until(lambda: broker.received == b"request", 1)
    broker.write(b"response")
    assert isinstance(await client.lost, TimeoutError | ConnectionResetError)
    assert client.received == b""
    assert isinstance(await broker.lost, TimeoutError | ConnectionResetError)


@pair_test
async def test_a_one_way_cut_of_acknowledgements_times_out_the_writer(s, client, broker):
    s.faults.cut(BROKER, CLIENT)
    client.write(b"request")
    assert isinstance(await client.lost, TimeoutError)
    assert isinstance(await broker.lost, ConnectionResetError), "the reset arrives"


@pair_test
async def test_a_one_way_cut_of_requests(s, client, broker):
    s.faults.cut(CLIENT, BROKER)
    client.write(b"request")
    assert isinstance(await client.lost, TimeoutError)
    assert broker.received == b""
    assert broker.is_open, "the reset was lost, too"


# Connections.


@pair_test
async def test_a_reset_in_the_middle_of_a_stream(s, client, broker):
    (endpoint,) = s.faults.connections(CLIENT, BROKER)
    client.write(b"12345")
    s.faults.reset(endpoint, after=7)
    await s.until(lambda: broker.received == b"12345")
    assert broker.is_open
    client.write(b"67890")
    await assert_reset(client, broker)
    assert broker.received == b"1234567"
    assert s.faults.connections() == []


@pair_test
async def test_a_blackholed_connection(s, client, broker):
    client.write(b"lost")
    assert s.faults.blackhole(CLIENT, BROKER) == 1
    assert isinstance(await asyncio.wait_for(client.lost, 20), TimeoutError)
    assert broker.received == b""
    await asyncio.sleep(1000)
    assert broker.is_open
    broker.transport.close()
    assert await broker.lost is None
