"""What becomes of connections when links, hosts and things in between fail. Each story runs with some seeds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.simulation.network.faults import ANY, NetworkFaults
from kbroker.simulation.network.tcp import TCP_TIMEOUT_S
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from tests.unit.simulation.network.test_network import PORT, Recorder

BROKER, CLIENT = "broker", "client"
SEEDS = range(5)


class Net:
    """A network with a listener on one host, each host with a loop of its own."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.network = self.loop.network
        self.faults: NetworkFaults = self.network.faults
        self.hosts: dict[str, HostLoop] = {}
        self.accepted: list[Recorder] = []
        self.trace: list[tuple[object, ...]] = []
        self.network.trace = lambda *facts: self.trace.append((self.loop.elapsed_ns, *facts))

    def host(self, name: str) -> HostLoop:
        if name not in self.hosts or self.hosts[name].dead:
            self.hosts[name] = HostLoop(self.loop, name, self.network.random)
        return self.hosts[name]

    async def listen(self) -> None:
        def accept() -> Recorder:
            self.accepted.append(Recorder(self.loop))
            return self.accepted[-1]

        await self.host(BROKER).run(self.host(BROKER).create_server(accept, BROKER, PORT))

    async def dial(self, name: str = CLIENT) -> Recorder:
        host = self.host(name)
        _, protocol = await host.run(host.create_connection(lambda: Recorder(self.loop), BROKER, PORT))
        return protocol

    async def pair(self) -> tuple[Recorder, Recorder]:
        """The client's end and the broker's."""
        client = await self.dial()
        await self.until(lambda: len(self.accepted) == len([1 for fact in self.trace if fact[1] == "open"]))
        return client, self.accepted[-1]

    def die(self, name: str, *, silent: bool) -> None:
        self.host(name).die()
        self.network.crash_host(name, silent)

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it did not come to pass"
            await asyncio.sleep(0.001)


def story(tell: Callable[[Net], Awaitable[None]]) -> Any:
    @pytest.mark.parametrize("seed", SEEDS)
    def test(seed: int) -> None:
        net = Net(seed)

        async def whole() -> None:
            await net.listen()
            await tell(net)

        net.loop.run_until_complete(whole())
        for host in net.hosts.values():
            host.discard()
        net.loop.close()

    return test


def lost(recorder: Recorder) -> bool:
    return recorder.lost.done()


# Hosts.


@story
async def test_a_paused_host_hears_it_later(net):
    client, broker = await net.pair()
    net.host(BROKER).pause()
    client.transport.write(b"question")
    other = await net.dial("other")
    assert other.events == ["made"], "the stack accepts connections for the process"
    await asyncio.sleep(100)
    assert broker.received == b""
    assert len(net.accepted) == 1
    net.host(BROKER).resume()
    await net.until(lambda: broker.received == b"question")
    await net.until(lambda: len(net.accepted) == 2)


@story
async def test_the_stack_of_a_killed_process_ends_its_connections(net):
    client, broker = await net.pair()
    broker.transport.write(b"answer")
    before = net.loop.time()
    net.die(BROKER, silent=False)
    error = await client.lost
    assert net.loop.time() - before < 0.1
    if error is None:
        assert client.received == b"answer"
        assert client.events == ["made", "eof", "lost"]
    else:
        assert isinstance(error, ConnectionResetError)
    assert broker.events == ["made"], "a dead process hears nothing"
    with pytest.raises(ConnectionRefusedError):
        await net.dial()
    await net.listen()
    await net.dial()


def test_a_killed_process_ends_its_connections_in_both_ways():
    """Orderly, with what it has written, or with a reset."""
    ends = []
    for seed in range(20):
        net = Net(seed)

        async def tell(net: Net = net) -> None:
            await net.listen()
            client, broker = await net.pair()
            broker.transport.write(b"answer")
            net.die(BROKER, silent=False)
            ends.append((await client.lost is None, client.received))

        net.loop.run_until_complete(tell())
        net.loop.close()
    assert set(ends) == {(True, b"answer"), (False, b"")}


@story
async def test_what_a_killed_process_had_not_given_to_its_stack_dies_with_it(net):
    client, broker = await net.pair()
    broker.transport.write(bytes(1_000_000))
    net.die(BROKER, silent=False)
    await client.lost
    assert len(client.received) <= 128 * 1024


@story
async def test_who_writes_to_a_killed_process_is_reset(net):
    client, _ = await net.pair()
    client.stays_open = True
    net.die(BROKER, silent=False)
    client.transport.write(b"anybody there?")
    assert isinstance(await client.lost, ConnectionResetError)


@story
async def test_power_loss_is_not_noticed_by_those_who_listen(net):
    client, _ = await net.pair()
    net.die(BROKER, silent=True)
    await asyncio.sleep(1000)
    assert not lost(client)
    before = net.loop.time()
    client.transport.write(b"anybody there?")
    assert isinstance(await client.lost, TimeoutError)
    least, most = TCP_TIMEOUT_S
    assert least <= net.loop.time() - before <= most + 0.1


@story
async def test_a_host_that_is_up_again_does_not_know_its_connections(net):
    asking, _ = await net.pair()
    listening, _ = await net.pair()
    net.die(BROKER, silent=True)
    asking.transport.write(b"anybody there?")
    await asyncio.sleep(2)
    assert not lost(asking)
    await net.listen()
    assert isinstance(await asking.lost, ConnectionResetError)
    await asyncio.sleep(100)
    assert not lost(listening)
    listening.transport.write(b"and you?")
    assert isinstance(await listening.lost, ConnectionResetError)


@story
async def test_connecting_to_a_host_without_power_times_out(net):
    net.die(BROKER, silent=True)
    before = net.loop.time()
    with pytest.raises(TimeoutError):
        await net.dial()
    assert 1 <= net.loop.time() - before <= 3.1
    dialling = asyncio.ensure_future(net.dial())
    await asyncio.sleep(0.5)
    await net.listen()
    await dialling


@story
async def test_who_dies_while_it_connects(net):
    net.network.latency_s = (0.01, 0.02)
    client = net.host(CLIENT)
    dialling = client.run(client.create_connection(lambda: Recorder(net.loop), BROKER, PORT))
    await net.until(lambda: net.trace and net.trace[-1][1] == "open")
    net.die(CLIENT, silent=False)
    with pytest.raises(Exception, match=CLIENT):
        await dialling
    await asyncio.sleep(1)
    for broker in net.accepted:
        assert await broker.lost is None or isinstance(broker.lost.result(), ConnectionResetError)


# Links.


@story
async def test_a_clogged_link_holds_everything_for_a_while(net):
    client, broker = await net.pair()
    client.transport.write(b"one ")
    net.faults.clog(CLIENT, BROKER, 30)
    client.transport.write(b"two ")
    broker.transport.write(b"the other way is free")
    await net.until(lambda: client.received, 1)
    await asyncio.sleep(29)
    assert broker.received == b""
    client.transport.write(b"three")
    dialling = asyncio.ensure_future(net.dial())
    await net.until(lambda: broker.received == b"one two three", 2)
    await dialling
    assert not lost(client)


@story
async def test_a_reset_waits_at_a_clogged_link(net):
    client, broker = await net.pair()
    net.faults.clog(CLIENT, BROKER, 30)
    client.transport.abort()
    await asyncio.sleep(29)
    assert not lost(broker)
    assert isinstance(await asyncio.wait_for(broker.lost, 2), ConnectionResetError)


@story
async def test_a_slow_link_is_shared(net):
    net.faults.slow(CLIENT, BROKER, 10_000)
    one, broker = await net.pair()
    two, other = await net.pair()
    before = net.loop.time()
    one.transport.write(bytes(50_000))
    two.transport.write(bytes(50_000))
    await net.until(lambda: len(broker.received) == len(other.received) == 50_000)
    assert 9 <= net.loop.time() - before <= 11
    before = net.loop.time()
    broker.transport.write(bytes(50_000))
    await net.until(lambda: len(one.received) == 50_000)
    assert net.loop.time() - before < 0.1
    net.faults.restore(CLIENT, BROKER)
    one.transport.write(bytes(50_000))
    await net.until(lambda: len(broker.received) == 100_000, 0.1)


@story
async def test_latency_by_pair(net):
    net.faults.latency(ANY, BROKER, (2, 3))
    client, broker = await net.pair()
    for _ in range(10):
        before = net.loop.time()
        broker.pieces.clear()
        client.transport.write(b"x")
        await net.until(lambda: broker.received == b"x")
        assert 2 <= net.loop.time() - before <= 3.01


@story
async def test_a_partition_that_heals_in_time_loses_nothing(net):
    client, broker = await net.pair()
    net.faults.partition(CLIENT, BROKER)
    client.transport.write(b"question")
    broker.transport.write(b"news")
    await asyncio.sleep(4)
    assert broker.received == client.received == b""
    net.faults.heal(CLIENT, BROKER)
    await net.until(lambda: broker.received == b"question" and client.received == b"news", 1)
    await asyncio.sleep(100)
    assert not lost(client)
    assert not lost(broker)


@story
async def test_a_long_partition_ends_connections_with_bytes_on_their_way(net):
    client, broker = await net.pair()
    idle, idle_too = await net.pair()
    net.faults.partition(CLIENT, BROKER)
    client.transport.write(b"question")
    assert isinstance(await client.lost, TimeoutError)
    assert not lost(broker), "it has not sent anything"
    net.faults.heal(CLIENT, BROKER)
    await asyncio.sleep(10)
    assert not lost(broker)
    broker.transport.write(b"still there?")
    assert isinstance(await broker.lost, ConnectionResetError)
    assert not lost(idle)
    idle.transport.write(b"nothing has happened")
    await net.until(lambda: idle_too.received)


@story
async def test_a_one_way_cut_of_answers(net):
    """What the client sends arrives, but it never hears so."""
    client, broker = await net.pair()
    net.faults.cut(BROKER, CLIENT)
    client.transport.write(b"question")
    await net.until(lambda: broker.received == b"question", 1)
    broker.transport.write(b"answer")
    assert isinstance(await client.lost, TimeoutError | ConnectionResetError)
    assert client.received == b""
    assert isinstance(await broker.lost, TimeoutError | ConnectionResetError)


@story
async def test_a_one_way_cut_of_questions(net):
    client, broker = await net.pair()
    net.faults.cut(CLIENT, BROKER)
    client.transport.write(b"question")
    assert isinstance(await client.lost, TimeoutError)
    assert broker.received == b""
    assert not lost(broker), "the reset was lost as well"


@story
async def test_connecting_over_a_cut_times_out(net):
    for source, target in ((BROKER, CLIENT), (CLIENT, BROKER), (ANY, BROKER), (BROKER, ANY)):
        net.faults.cut(source, target)
        with pytest.raises(TimeoutError):
            await net.dial()
        net.faults.restore(source, target)
        await net.dial()


@story
async def test_half_open(net):
    """One side has closed while the other could not hear it."""
    client, broker = await net.pair()
    net.faults.partition(CLIENT, BROKER)
    client.transport.abort()
    await asyncio.sleep(100)
    net.faults.heal_all()
    await asyncio.sleep(100)
    assert not lost(broker)
    broker.transport.write(b"?")
    assert isinstance(await broker.lost, ConnectionResetError)


@story
async def test_rules_for_all_hosts_hold_for_hosts_to_come(net):
    net.faults.partition(BROKER, ANY)
    with pytest.raises(TimeoutError):
        await net.dial("later")
    own = net.host(BROKER)
    await own.run(own.create_connection(lambda: Recorder(net.loop), "127.0.0.1", PORT))
    net.faults.heal_all()
    await net.dial("later")


# Connections.


@story
async def test_a_reset_in_the_middle_of_a_stream(net):
    client, broker = await net.pair()
    (end,) = net.faults.connections(CLIENT, BROKER)
    client.transport.write(b"12345")
    net.faults.reset(end, after=7)
    await net.until(lambda: broker.received == b"12345")
    assert not lost(broker)
    client.transport.write(b"67890")
    assert isinstance(await client.lost, ConnectionResetError)
    assert isinstance(await broker.lost, ConnectionResetError)
    assert broker.received == b"1234567"
    assert net.faults.connections() == []


@story
async def test_random_resets(net):
    for _ in range(10):
        client, broker = await net.pair()
        assert net.faults.reset_any()
        client.transport.write(bytes(5000))
        broker.transport.write(bytes(5000))
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await broker.lost, ConnectionResetError)
    assert not net.faults.reset_any()
    assert net.faults.injected["reset"] == 10
    net.network.reset_chance = 0.2
    client, broker = await net.pair()
    while not lost(client):
        client.transport.write(bytes(100))
        await asyncio.sleep(0.01)
    assert await broker.lost is not None
    assert net.faults.injected["reset"] == 11


@story
async def test_a_forgotten_connection(net):
    """As by a middlebox that has restarted."""
    client, broker = await net.pair()
    client.transport.write(b"lost")
    assert net.faults.blackhole(CLIENT, BROKER) == 1
    await net.until(lambda: lost(client), 20)
    assert isinstance(await client.lost, TimeoutError)
    assert broker.received == b""
    await asyncio.sleep(1000)
    assert not lost(broker)
    broker.transport.close()
    assert await broker.lost is None


# As one seed decides.


def trace_of(seed: int) -> list[tuple[object, ...]]:
    """Clients that talk and dial again, under faults of every kind."""
    net = Net(seed)
    loop, faults, random = net.loop, net.faults, net.network.random

    async def talk(name: str) -> None:
        client = None
        while loop.time() < 100:
            try:
                if client is None or lost(client):
                    client = await net.dial(name)
            except OSError:
                pass
            else:
                client.transport.write(bytes(random.randrange(3000)))
            await asyncio.sleep(random.random())

    async def trouble() -> None:
        while loop.time() < 100:
            one, other = random.sample(["a", "b", BROKER], 2)
            act, *arguments = random.choice(
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
            act(*arguments)
            await asyncio.sleep(random.uniform(0, 5))

    async def program() -> None:
        await net.listen()
        await asyncio.gather(talk("a"), talk("b"), trouble())
        faults.heal_all()
        await asyncio.sleep(5)
        client = await net.dial("c")
        broker = net.accepted[-1]
        client.transport.write(b"all is well")
        await net.until(lambda: broker.received == b"all is well", 5)

    loop.run_until_complete(program())
    loop.close()
    return net.trace


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_gives_the_same_trace(seed):
    trace = trace_of(seed)
    assert trace == trace_of(seed)
    assert {"bytes", "open", "reset"} <= {str(event[1]) for event in trace}
