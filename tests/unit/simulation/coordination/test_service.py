"""The guarantees of the simulated coordination service to its sessions, and what it does not guarantee."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.coordination.interface import (
    BadVersion,
    Node,
    NoNode,
    NotEmpty,
    SessionExpired,
    Set,
    TooLarge,
    Unavailable,
    WatchEvent,
)
from kbroker.simulation.coordination.service import SimCoordination
from tests.unit.support.simulated_hosts import SimulatedHosts, simulated

TIMEOUT_S = 6.0
CHANGED = WatchEvent("changed", "/x")
LOST = WatchEvent("lost", "/x")
# A delay that is longer than a test.
NEVER_S = (1000.0, 1000.0)


class Client:
    """A program with a session on a host of its own."""

    def __init__(self, ensemble: "Ensemble", name: str) -> None:
        self.loop = ensemble.host(name)
        self.session = ensemble.service.session(self.loop, name)
        self.expired: list[float] = []
        self.events: list[WatchEvent] = []
        self.session.on_expired(lambda: self.expired.append(ensemble.loop.time()))

    def call(self, name: str, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        return self.loop.run(getattr(self.session, name)(*args, **kwargs))

    def watch(self, event: WatchEvent) -> None:
        self.events.append(event)


class Ensemble(SimulatedHosts):
    """The service with the clients `a` and `b`, and the node /x, which `a` has created."""

    ephemeral = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.service = SimCoordination(self.loop, Random(f"{seed}/coordination"))
        self.a, self.b = Client(self, "a"), Client(self, "b")

    async def start(self) -> None:
        await self.a.call("create", "/x", b"", ephemeral=self.ephemeral)


class EnsembleWithEphemeralNode(Ensemble):
    ephemeral = True


class EnsembleWithSyncedNode(Ensemble):
    """Both clients have seen the node."""

    async def start(self) -> None:
        await super().start()
        await self.b.call("sync")


SEEDS = range(5)
with_node = simulated(EnsembleWithSyncedNode, SEEDS)
with_ephemeral_node = simulated(EnsembleWithEphemeralNode, SEEDS)


@with_node
async def test_nodes_are_read_together_and_deleted(s):
    await s.a.call("create", "/x/y", b"2")
    await s.b.call("sync")
    assert await s.b.call("get_many", ["/x", "/nothing", "/x/y"]) == [Node(b"", 0), None, Node(b"2", 0)]
    with pytest.raises(NotEmpty):
        await s.b.call("delete", "/x")
    await s.b.call("delete", "/x/y")
    await s.a.call("sync")
    assert await s.a.call("children", "/x") == []
    assert s.a.session.session_id != s.b.session.session_id


@with_node
async def test_requests_take_time_and_keep_their_order(s):
    s.service.delay_s = (0.1, 0.5)
    before = s.loop.time()
    await s.a.call("get", "/x")
    assert 0.2 <= s.loop.time() - before <= 1.1
    sets = [s.a.call("set", "/x", b"", version) for version in range(20)]
    assert await asyncio.gather(*sets) == list(range(1, 21))


@with_node
async def test_an_oversized_multi_is_not_sent(s):
    half = bytes(600_000)
    with pytest.raises(TooLarge):
        await s.a.call("multi", [Set("/x", half), Set("/x", half)])
    await s.a.call("multi", [])
    await s.a.call("set", "/x", half)
    assert (await s.a.call("get", "/x")).version == 1


@with_ephemeral_node
async def test_an_ephemeral_node_has_the_session_that_created_it(s):
    assert (await s.a.call("get", "/x")).owner == s.a.session.session_id


# Stale reads.


def test_reads_are_stale_until_a_sync():
    reads = set()

    async def test(s: Ensemble) -> None:
        s.service.lag_s = NEVER_S
        await s.a.call("set", "/x", b"1")
        assert (await s.a.call("get", "/x")).data == b"1", "a session sees its own writes"
        await asyncio.sleep(10)
        reads.add((await s.b.call("get", "/x")).data)
        await s.b.call("sync")
        assert (await s.b.call("get", "/x")).data == b"1"

    for seed in range(30):
        EnsembleWithSyncedNode(seed).run(test)
    assert reads == {b"", b"1"}, "the two sessions may have the same server"


@with_node
async def test_a_session_sees_what_it_has_failed_on(s):
    s.service.lag_s = NEVER_S
    await s.a.call("set", "/x", b"1")
    await s.a.call("create", "/y", b"")
    with pytest.raises(BadVersion):
        await s.b.call("set", "/x", b"2", 0)
    assert await s.b.call("get", "/x") == Node(b"1", 1)
    assert await s.b.call("exists", "/y") == 0


def test_a_session_does_not_go_back_on_another_connection():
    async def test(s: Ensemble) -> None:
        s.service.lag_s = NEVER_S
        await s.a.call("set", "/x", b"1")
        assert (await s.a.call("get", "/x")).data == b"1"
        await disconnect(s)
        assert (await s.a.call("get", "/x")).data == b"1"

    for seed in range(20):
        Ensemble(seed).run(test)


async def disconnect(s: Ensemble) -> None:
    """Let the connections be lost, and the sessions connect again."""
    s.service.stop()
    await asyncio.sleep(0.1)
    # Servers that start have all transactions, but not if only their connections were lost.
    s.service._down = False


# Watches.


@with_node
async def test_a_watch_fires_once_after_the_change(s):
    a, b = s.a, s.b
    await b.call("get", "/x", b.watch)
    await b.call("exists", "/y", b.watch)
    await b.call("children", "/x", b.watch)
    await a.call("get", "/x", a.watch)
    await a.call("set", "/x", b"1")
    assert a.events == [CHANGED], "the notification comes before the response"
    await a.call("create", "/x/child", b"")
    await a.call("create", "/y", b"")
    await a.call("set", "/x", b"2")
    with pytest.raises(NoNode):
        await b.call("get", "/nothing", b.watch)
    await a.call("create", "/nothing", b"")
    await asyncio.sleep(10)
    assert b.events == [CHANGED, WatchEvent("children", "/x"), WatchEvent("created", "/y")]


@with_node
async def test_the_notification_comes_before_the_new_data(s):
    s.service.lag_s = (0.5, 2)
    for number in range(1, 30):
        old = await s.b.call("get", "/x", s.b.watch)
        setting = s.a.call("set", "/x", b"%d" % number)
        while (await s.b.call("get", "/x")) == old:
            pass
        assert s.b.events == [CHANGED]
        s.b.events.clear()
        await setting


@with_node
async def test_watches_are_lost_with_the_connection(s):
    await s.b.call("get", "/x", s.b.watch)
    s.service.cut("b")
    await asyncio.sleep(3)
    await s.a.call("set", "/x", b"1")
    await asyncio.sleep(2)
    assert not s.b.events
    s.service.heal("b")
    await s.until(lambda: s.b.events, 5)
    assert s.b.events == [LOST]
    await s.a.call("set", "/x", b"2")
    await asyncio.sleep(10)
    assert s.b.events == [LOST]


@with_node
async def test_a_notification_is_lost_with_the_connection(s):
    await s.b.call("get", "/x", s.b.watch)
    s.service.cut("b", requests=False)
    await s.a.call("set", "/x", b"1")
    await asyncio.sleep(5)
    s.service.heal("b")
    await s.until(lambda: s.b.events, 5)
    assert s.b.events in ([LOST], [CHANGED]), "the connection may have survived"


@with_node
async def test_a_watch_without_a_response_is_not_set(s):
    s.service.cut("b", requests=False)
    with pytest.raises(Unavailable):
        await s.b.call("get", "/x", s.b.watch)
    s.service.heal("b")
    await s.a.call("set", "/x", b"1")
    await asyncio.sleep(10)
    assert s.b.events == []


# The end of sessions.


@with_ephemeral_node
async def test_close_deletes_ephemeral_nodes(s):
    await s.b.call("exists", "/x", s.b.watch)
    await s.a.call("close")
    await s.until(lambda: s.b.events == [WatchEvent("deleted", "/x")])
    with pytest.raises(SessionExpired):
        await s.a.call("get", "/x")
    await s.a.call("close")
    assert s.a.expired == []


@with_ephemeral_node
async def test_pings_keep_a_session_alive(s):
    iterations = s.loop.iterations
    await asyncio.sleep(3600)
    assert await s.b.call("exists", "/x") == 0
    assert s.loop.iterations - iterations < 20_000


@with_ephemeral_node
async def test_the_session_of_a_dead_host_expires(s):
    await s.b.call("exists", "/x", s.b.watch)
    before = s.loop.time()
    s.a.loop.die()
    await s.until(lambda: s.b.events)
    assert s.b.events == [WatchEvent("deleted", "/x")]
    assert TIMEOUT_S - 2.1 <= s.loop.time() - before <= TIMEOUT_S + 0.1
    assert s.service.sessions("a") == []


@with_ephemeral_node
async def test_a_paused_program_learns_late_that_its_session_has_expired(s):
    s.a.loop.pause()
    await asyncio.sleep(2)
    s.a.loop.resume()
    await asyncio.sleep(10)
    assert await s.b.call("exists", "/x") == 0
    s.a.loop.pause()
    await asyncio.sleep(TIMEOUT_S + 1)
    assert await s.b.call("exists", "/x") is None
    assert s.a.expired == []
    s.a.loop.resume()
    await s.until(lambda: s.a.expired, 5)
    with pytest.raises(SessionExpired):
        await s.a.call("get", "/x")
    assert len(s.a.expired) == 1


@with_ephemeral_node
async def test_expire(s):
    await s.b.call("exists", "/x", s.b.watch)
    s.service.expire(s.a.session.session_id)
    await s.until(lambda: s.b.events)
    with pytest.raises((SessionExpired, Unavailable)):
        await s.a.call("get", "/x")
    await s.until(lambda: s.a.expired, 2)
    assert len(s.a.expired) == 1


# Cuts.


@with_node
async def test_a_short_cut_only_delays(s):
    s.service.cut("a")
    setting = s.a.call("set", "/x", b"1")
    await asyncio.sleep(1.5)
    assert not setting.done()
    s.service.heal("a")
    assert await setting == 1
    assert s.a.expired == []


@with_node
async def test_lost_requests(s):
    s.service.cut("a", responses=False)
    before = s.loop.time()
    with pytest.raises(Unavailable):
        await s.a.call("set", "/x", b"1")
    assert s.loop.time() - before <= 2 * TIMEOUT_S * 2 / 3
    assert await s.b.call("get", "/x") == Node(b"", 0)
    await s.until(lambda: s.a.session.session_id not in s.service.sessions())
    assert s.a.expired == []
    s.service.heal("a")
    await s.until(lambda: s.a.expired, 5)


@with_node
async def test_lost_responses(s):
    s.service.cut("a", requests=False)
    with pytest.raises(Unavailable):
        await s.a.call("set", "/x", b"1")
    assert await s.b.call("get", "/x") == Node(b"1", 1)
    await asyncio.sleep(60)
    s.service.heal("a")
    assert await s.a.call("get", "/x") == Node(b"1", 1)
    assert s.a.expired == [], "the service has received its pings"


@with_node
async def test_a_request_without_a_connection_waits_and_times_out(s):
    s.service.cut("a")
    await asyncio.sleep(5)
    before = s.loop.time()
    with pytest.raises(Unavailable):
        await s.a.call("get", "/x")
    assert 3.9 <= s.loop.time() - before <= 4.1


@with_ephemeral_node
async def test_close_without_a_connection(s):
    s.service.cut("a")
    await s.a.call("close")
    assert await s.b.call("exists", "/x") == 0
    await asyncio.sleep(TIMEOUT_S)
    assert await s.b.call("exists", "/x") is None


def test_a_write_may_be_applied_after_it_failed_and_later_reads_but_not_after_a_sync():
    outcomes = set()

    async def test(s: Ensemble) -> None:
        s.service.delay_s = (3.9, 4.5)
        with pytest.raises(Unavailable):
            await s.a.call("set", "/x", b"1")
        s.service.delay_s = (0.001, 0.002)
        s.service.lag_s = (0.0, 0.001)
        read = await s.a.call("get", "/x")
        await asyncio.sleep(s.seed % 3 * 4)
        if s.seed % 2:
            await s.a.call("sync")
            node = await s.a.call("get", "/x")
        else:
            await s.a.call("create", "/y", b"")
            node = await s.a.call("get", "/x")
        await asyncio.sleep(10)
        await s.b.call("sync")
        assert await s.b.call("get", "/x") == node
        outcomes.add((read.data, node.data))

    for seed in range(60):
        Ensemble(seed).run(test)
    assert outcomes == {(b"", b""), (b"", b"1"), (b"1", b"1")}


def test_a_write_of_a_session_that_has_ended_is_not_applied():
    async def test(s: Ensemble) -> None:
        s.service.delay_s = (3.9, 4.5)
        creating = s.a.call("create", "/y", b"", ephemeral=True)
        with pytest.raises(Unavailable):
            await creating
        s.service.expire(s.a.session.session_id)
        await asyncio.sleep(10)
        assert s.service.tree.version("/y") is None

    for seed in range(10):
        Ensemble(seed).run(test)


# Restarts of the service.


@with_ephemeral_node
async def test_the_service_restarts(s):
    await s.b.call("get", "/x", s.b.watch)
    sets = [s.a.call("set", "/x", b"%d" % i) for i in range(3)]
    await asyncio.sleep(0.001)
    s.service.stop()
    outcomes = await asyncio.gather(*sets, return_exceptions=True)
    assert all(isinstance(outcome, int | Unavailable) for outcome in outcomes)
    with pytest.raises(Unavailable):
        await s.a.call("get", "/x")
    await asyncio.sleep(100)
    s.service.start()
    node = await s.b.call("get", "/x")
    assert sum(isinstance(outcome, int) for outcome in outcomes) <= node.version <= 3
    assert s.b.events in ([LOST], [CHANGED])
    s.a.loop.die()
    await asyncio.sleep(TIMEOUT_S + 1)
    assert await s.b.call("exists", "/x") is None
    assert s.a.expired == s.b.expired == []


@with_ephemeral_node
async def test_a_session_that_does_not_reconnect_after_a_restart_expires(s):
    s.service.stop()
    s.service.cut("a")
    await asyncio.sleep(100)
    s.service.start()
    await asyncio.sleep(TIMEOUT_S - 1)
    assert await s.b.call("exists", "/x") == 0
    await asyncio.sleep(2)
    assert await s.b.call("exists", "/x") is None
    s.service.heal("a")
    await s.until(lambda: s.a.expired, 5)
