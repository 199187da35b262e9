"""The guarantees of the simulated coordination service to its sessions, and what it does not guarantee."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.metadata.store.coordination import (
    Node,
    NoNode,
    NotEmpty,
    SessionExpired,
    Unavailable,
    WatchEvent,
)
from kbroker.simulation.coordination.service import SimCoordination
from tests.unit.support.simulated_hosts import SimulatedHosts, simulated

TIMEOUT_S = 6.0
CHANGED = WatchEvent("changed", "/x")


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


SEEDS = range(5)
with_node = simulated(Ensemble, SEEDS)
with_ephemeral_node = simulated(EnsembleWithEphemeralNode, SEEDS)


@with_node
async def test_nodes_are_read_together_and_deleted(s):
    await s.a.call("create", "/x/y", b"2")
    assert await s.b.call("get_many", ["/x", "/nothing", "/x/y"]) == [Node(b"", 0), None, Node(b"2", 0)]
    with pytest.raises(NotEmpty):
        await s.b.call("delete", "/x")
    await s.b.call("delete", "/x/y")
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
    s.service.watch_delay_s = (0.5, 2)
    for number in range(1, 30):
        old = await s.b.call("get", "/x", s.b.watch)
        setting = s.a.call("set", "/x", b"%d" % number)
        while (await s.b.call("get", "/x")) == old:
            assert not s.b.events
        assert s.b.events == [CHANGED]
        s.b.events.clear()
        await setting


@with_node
async def test_watches_survive_lost_connections(s):
    await s.b.call("get", "/x", s.b.watch)
    s.service.cut("b")
    await asyncio.sleep(3)
    await s.a.call("set", "/x", b"1")
    await asyncio.sleep(2)
    assert not s.b.events
    s.service.heal("b")
    assert await s.b.call("get", "/x") == Node(b"1", 1)
    await asyncio.sleep(10)
    assert s.b.events == [CHANGED]


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


def test_a_request_may_be_applied_after_it_failed_but_not_after_the_session_has_reconnected():
    outcomes = set()

    async def test(s: Ensemble) -> None:
        s.service.delay_s = (3.9, 4.5)
        with pytest.raises(Unavailable):
            await s.a.call("set", "/x", b"1")
        s.service.delay_s = (0.001, 0.002)
        node = await s.a.call("get", "/x")
        await asyncio.sleep(10)
        assert await s.b.call("get", "/x") == node
        outcomes.add(node.data)

    for seed in range(30):
        Ensemble(seed).run(test)
    assert outcomes == {b"", b"1"}


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
    assert len(s.b.events) == (node.version > 0)
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
