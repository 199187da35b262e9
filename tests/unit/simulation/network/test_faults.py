"""What happens to connections when links, hosts and middleboxes fail. Each test runs with several seeds."""

import asyncio

import pytest

from kbroker.simulation.network.link import ANY
from kbroker.simulation.network.tcp import SOCKET_BUFFER, TCP_TIMEOUT_S
from tests.sampling import third_of
from tests.unit.support.simulated_hosts import simulated
from tests.unit.support.simulated_network import (
    BROKER,
    CLIENT,
    PORT,
    ListeningBroker,
    Recorder,
    assert_reset,
    simulated_pair,
)

SEEDS = range(5)

network_test = simulated(ListeningBroker, SEEDS)
pair_test = simulated_pair(SEEDS)


# Hosts.


@pair_test
async def test_a_paused_host_receives_later(s, client, broker):
    s.host(BROKER).pause()
    client.write(b"request")
    other = await s.connect("other")
    assert other.events == ["made"], "the stack accepts connections for the process"
    await asyncio.sleep(100)
    assert (broker.received, len(s.accepted)) == (b"", 1)
    s.host(BROKER).resume()
    await s.until(lambda: broker.received == b"request" and len(s.accepted) == 2)


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


@network_test
async def test_a_rebooted_host_resets_its_former_connections(s):
    writing, _ = await s.pair()
    reading, _ = await s.pair()
    s.crash(BROKER, silent=True)
    writing.write(b"?")
    await asyncio.sleep(2)
    assert writing.is_open
    await s.listen()
    await assert_reset(writing)
    await asyncio.sleep(100)
    assert reading.is_open
    reading.write(b"?")
    await assert_reset(reading)


@network_test
async def test_connecting_to_a_host_without_power_times_out(s):
    s.crash(BROKER, silent=True)
    before = s.loop.time()
    with pytest.raises(TimeoutError):
        await s.connect()
    assert 1 <= s.loop.time() - before <= 3.1
    connecting = asyncio.ensure_future(s.connect())
    await asyncio.sleep(0.5)
    await s.listen()
    await connecting


@network_test
async def test_a_client_that_dies_while_it_connects(s):
    s.network.latency_s = (0.01, 0.02)
    client = s.host(CLIENT)
    connecting = client.run(client.create_connection(lambda: Recorder(s.loop), BROKER, PORT))
    await s.until(lambda: s.trace and s.trace[-1][1] == "open")
    s.crash(CLIENT, silent=False)
    with pytest.raises(Exception, match=CLIENT):
        await connecting
    await asyncio.sleep(1)
    for broker in s.accepted:
        assert await broker.lost is None or isinstance(broker.lost.result(), ConnectionResetError)


# Links.


@pair_test
async def test_a_clogged_link_delays_bytes_and_resets(s, client, broker):
    aborted, reset = await s.pair()
    client.write(b"one ")
    s.faults.clog(CLIENT, BROKER, 30)
    client.write(b"two ")
    aborted.transport.abort()
    broker.write(b"the other direction works")
    await s.until(lambda: client.received, 1)
    await asyncio.sleep(29)
    assert broker.received == b""
    assert reset.is_open
    client.write(b"three")
    connecting = asyncio.ensure_future(s.connect())
    await s.until(lambda: broker.received == b"one two three", 3)
    await connecting
    assert client.is_open
    assert isinstance(await asyncio.wait_for(reset.lost, 3), ConnectionResetError)


@network_test
async def test_connections_share_a_slow_link(s):
    s.faults.slow(CLIENT, BROKER, 10_000)
    client, broker = await s.pair()
    second, other = await s.pair()
    before = s.loop.time()
    client.write(bytes(50_000))
    second.write(bytes(50_000))
    await s.until(lambda: len(broker.received) == len(other.received) == 50_000)
    assert 9 <= s.loop.time() - before <= 11
    broker.write(bytes(50_000))
    await s.until(lambda: len(client.received) == 50_000, 0.1)
    s.faults.restore(CLIENT, BROKER)
    client.write(bytes(50_000))
    await s.until(lambda: len(broker.received) == 100_000, 0.1)


@network_test
async def test_latency_rules(s):
    s.faults.latency(ANY, BROKER, (2, 3))
    client, broker = await s.pair()
    for _ in range(10):
        before = s.loop.time()
        broker.pieces.clear()
        client.write(b"x")
        await s.until(lambda: broker.received == b"x")
        assert 2 <= s.loop.time() - before <= 3.01


@pair_test
async def test_a_short_partition_loses_nothing(s, client, broker):
    s.faults.partition(CLIENT, BROKER)
    client.write(b"request")
    broker.write(b"response")
    await asyncio.sleep(4)
    assert broker.received == client.received == b""
    s.faults.heal(CLIENT, BROKER)
    await s.until(lambda: broker.received == b"request" and client.received == b"response", 1)
    await asyncio.sleep(100)
    assert client.is_open
    assert broker.is_open


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


@network_test
async def test_connecting_over_a_cut_link_times_out(s):
    own = s.host(BROKER)
    for source, target in ((BROKER, CLIENT), (CLIENT, BROKER), (ANY, BROKER), (BROKER, ANY)):
        s.faults.cut(source, target)
        with pytest.raises(TimeoutError):
            await s.connect()
        # Rules with ANY do not apply to a host's connections to itself.
        await own.run(own.create_connection(lambda: Recorder(s.loop), "127.0.0.1", PORT))
        s.faults.restore(source, target)
        await s.connect()


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


@network_test
async def test_random_resets(s):
    for _ in range(10):
        client, broker = await s.pair()
        assert s.faults.reset_any()
        client.write(bytes(5000))
        broker.write(bytes(5000))
        await assert_reset(client, broker)
    assert not s.faults.reset_any()
    s.network.reset_chance = 0.2
    client, broker = await s.pair()
    while client.is_open:
        client.write(bytes(100))
        await asyncio.sleep(0.01)
    assert await broker.lost is not None
    assert s.faults.injected["reset"] == 11
    s.faults.heal_all()
    assert s.network.reset_chance == 0


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


# Seeds.


def trace_of(seed: int) -> list[tuple[object, ...]]:
    """Run clients that write and reconnect, under all faults; return the trace."""
    s = ListeningBroker(seed)
    loop, faults, random = s.loop, s.faults, s.network.random

    async def write(name: str) -> None:
        client = None
        while loop.time() < 100:
            try:
                if client is None or not client.is_open:
                    client = await s.connect(name)
            except OSError:
                pass
            else:
                client.write(bytes(random.randrange(3000)))
            await asyncio.sleep(random.random())

    async def inject() -> None:
        while loop.time() < 100:
            one, other = random.sample(["a", "b", BROKER], 2)
            fault, *arguments = random.choice(
                [
                    (faults.clog, one, other, random.random()),
                    (faults.cut, one, other),
                    (faults.slow, one, other, 1000),
                    (faults.reset_any, one, ANY),
                    (faults.blackhole, one, other),
                    (faults.latency, one, ANY, (0.1, 0.2)),
                    (faults.heal, one, other),
                    (faults.heal_all,),
                    (faults.heal_all,),
                ]
            )
            fault(*arguments)
            await asyncio.sleep(random.uniform(0, 5))

    async def test(s: ListeningBroker) -> None:
        await asyncio.gather(write("a"), write("b"), inject())
        faults.heal_all()
        await asyncio.sleep(5)
        client = await s.connect("c")
        client.write(b"healed")
        await s.until(lambda: s.accepted[-1].received == b"healed", 5)

    s.run(test)
    return s.trace


@pytest.mark.parametrize("seed", third_of(range(5)))
def test_equal_seeds_give_equal_traces(seed):
    trace = trace_of(seed)
    assert trace == trace_of(seed)
    assert {"bytes", "open", "reset"} <= {str(event[1]) for event in trace}
