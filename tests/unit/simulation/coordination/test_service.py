"""The simulated coordination service: what its sessions may rely on, and what they may not."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kbroker.metadata.store.coordination import (
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    Set,
    Unavailable,
    WatchEvent,
)
from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.coordination.session import SimSession
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import SimLoop

SEEDS = range(5)
TIMEOUT_S = 6.0


class Client:
    """A program with a session. Its coroutines run on its own host."""

    def __init__(self, sim_loop: SimLoop, service: SimCoordination, name: str) -> None:
        self.loop = HostLoop(sim_loop, name, Random(name))
        self.session: SimSession = service.session(self.loop, name)
        self.expired: list[float] = []
        self.events: list[WatchEvent] = []
        self.session.on_expired(lambda: self.expired.append(sim_loop.time()))

    def call(self, name: str, *args: Any, **named: Any) -> "asyncio.Future[Any]":
        return self.loop.run(getattr(self.session, name)(*args, **named))

    def see(self, event: WatchEvent) -> None:
        self.events.append(event)


class Ensemble:
    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.service = SimCoordination(self.loop, Random(f"{seed}/coordination"))
        self.clients: list[Client] = []

    def client(self, name: str) -> Client:
        self.clients.append(Client(self.loop, self.service, name))
        return self.clients[-1]

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it did not come to pass"
            await asyncio.sleep(0.001)


def story(tell: Callable[..., Awaitable[None]]) -> Any:
    """Told with two clients, `a` and `b`."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test(seed: int) -> None:
        ensemble = Ensemble(seed)
        ensemble.loop.run_until_complete(tell(ensemble, ensemble.client("a"), ensemble.client("b")))
        for client in ensemble.clients:
            client.loop.discard()
        ensemble.loop.close()

    return test


@story
async def test_nodes(ensemble, a, b):
    await a.call("create", "/x", b"1")
    assert await b.call("get", "/x") == Node(b"1", 0)
    assert await b.call("set", "/x", b"2", 0) == 1
    with pytest.raises(BadVersion):
        await a.call("set", "/x", b"3", 0)
    with pytest.raises(NodeExists):
        await a.call("create", "/x", b"")
    await a.call("multi", [Check("/x", 1), Create("/x/y", b""), Create("/x/z", b"")])
    assert await b.call("children", "/x") == ["y", "z"]
    with pytest.raises(NotEmpty):
        await b.call("delete", "/x")
    with pytest.raises(NoNode):
        await b.call("multi", [Set("/x", b"no"), Delete("/nothing")])
    assert await a.call("get_many", ["/x", "/nothing", "/x/y"]) == [Node(b"2", 1), None, Node(b"", 0)]
    assert await a.call("exists", "/x") == 1
    assert await a.call("exists", "/nothing") is None
    assert a.session.session_id != b.session.session_id


@story
async def test_requests_take_time_and_keep_their_order(ensemble, a, b):
    await a.call("create", "/x", b"")
    ensemble.service.delay_s = (0.1, 0.5)
    before = ensemble.loop.time()
    await a.call("get", "/x")
    assert 0.2 <= ensemble.loop.time() - before <= 1.1
    sets = [a.call("set", "/x", b"", i) for i in range(20)]
    assert await asyncio.gather(*sets) == list(range(1, 21))


@story
async def test_watches_fire_once_after_the_change(ensemble, a, b):
    await a.call("create", "/x", b"")
    await b.call("get", "/x", b.see)
    await b.call("exists", "/y", b.see)
    await b.call("children", "/x", b.see)
    await a.call("set", "/x", b"1")
    await a.call("create", "/x/child", b"")
    await a.call("create", "/y", b"")
    await a.call("set", "/x", b"2")
    await ensemble.until(lambda: len(b.events) == 3)
    await asyncio.sleep(10)
    assert b.events == [WatchEvent("changed", "/x"), WatchEvent("children", "/x"), WatchEvent("created", "/y")]
    with pytest.raises(NoNode):
        await b.call("get", "/nothing", b.see)
    await a.call("create", "/nothing", b"")
    await asyncio.sleep(10)
    assert len(b.events) == 3


@story
async def test_the_event_comes_before_the_new_data(ensemble, a, b):
    await a.call("create", "/x", b"0")
    ensemble.service.watch_delay_s = (0.5, 2)
    for number in range(1, 30):
        old = await b.call("get", "/x", b.see)
        changing = a.call("set", "/x", b"%d" % number)
        while (await b.call("get", "/x")) == old:
            assert not b.events
        assert b.events == [WatchEvent("changed", "/x")]
        b.events.clear()
        await changing


@story
async def test_a_client_hears_of_its_own_change_before_its_answer(ensemble, a, b):
    await a.call("create", "/x", b"")
    await a.call("get", "/x", a.see)
    await a.call("set", "/x", b"1")
    assert a.events == [WatchEvent("changed", "/x")]


@story
async def test_close(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    await b.call("exists", "/x", b.see)
    await a.call("close")
    await ensemble.until(lambda: b.events == [WatchEvent("deleted", "/x")])
    with pytest.raises(SessionExpired):
        await a.call("get", "/x")
    await a.call("close")
    assert a.expired == []


@story
async def test_a_session_lives_as_long_as_it_is_heard_of(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    turns = ensemble.loop.iterations
    await asyncio.sleep(3600)
    assert await b.call("exists", "/x") == 0
    assert ensemble.loop.iterations - turns < 20_000


@story
async def test_the_session_of_a_dead_host_expires(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    await b.call("exists", "/x", b.see)
    before = ensemble.loop.time()
    a.loop.die()
    await ensemble.until(lambda: b.events)
    assert b.events == [WatchEvent("deleted", "/x")]
    assert TIMEOUT_S - 2.1 <= ensemble.loop.time() - before <= TIMEOUT_S + 0.1
    assert ensemble.service.sessions("a") == []


@story
async def test_a_paused_program_learns_late_that_its_session_is_over(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    a.loop.pause()
    await asyncio.sleep(2)
    a.loop.resume()
    await asyncio.sleep(10)
    assert await b.call("exists", "/x") == 0
    a.loop.pause()
    await asyncio.sleep(TIMEOUT_S + 1)
    assert await b.call("exists", "/x") is None
    assert a.expired == []
    a.loop.resume()
    await ensemble.until(lambda: a.expired, 5)
    with pytest.raises(SessionExpired):
        await a.call("get", "/x")
    assert len(a.expired) == 1


@story
async def test_a_short_cut_only_delays(ensemble, a, b):
    await a.call("create", "/x", b"")
    ensemble.service.cut("a")
    setting = a.call("set", "/x", b"1")
    await asyncio.sleep(1.5)
    assert not setting.done()
    ensemble.service.heal("a")
    assert await setting == 1
    assert a.expired == []


@story
async def test_a_request_that_does_not_arrive(ensemble, a, b):
    await a.call("create", "/x", b"")
    ensemble.service.cut("a", responses=False)
    before = ensemble.loop.time()
    with pytest.raises(Unavailable):
        await a.call("set", "/x", b"1")
    assert ensemble.loop.time() - before <= 2 * TIMEOUT_S * 2 / 3
    assert await b.call("get", "/x") == Node(b"", 0)
    await ensemble.until(lambda: a.session.session_id not in ensemble.service.sessions())
    assert a.expired == []
    ensemble.service.heal("a")
    await ensemble.until(lambda: a.expired, 5)


@story
async def test_an_answer_that_does_not_arrive(ensemble, a, b):
    await a.call("create", "/x", b"")
    ensemble.service.cut("a", requests=False)
    with pytest.raises(Unavailable):
        await a.call("set", "/x", b"1")
    assert await b.call("get", "/x") == Node(b"1", 1)
    await asyncio.sleep(60)
    ensemble.service.heal("a")
    assert await a.call("get", "/x") == Node(b"1", 1)
    assert a.expired == [], "the service has heard of it all the time"


@story
async def test_what_is_asked_while_there_is_no_way_waits_and_gives_up(ensemble, a, b):
    await a.call("create", "/x", b"")
    ensemble.service.cut("a")
    await asyncio.sleep(5)
    before = ensemble.loop.time()
    asked = a.call("get", "/x")
    with pytest.raises(Unavailable):
        await asked
    assert 3.9 <= ensemble.loop.time() - before <= 4.1
    ensemble.service.heal("a")


def test_a_request_may_be_done_after_it_was_given_up():
    """But never after the session has connected anew."""
    outcomes = set()
    for seed in range(30):
        ensemble = Ensemble(seed)
        a, b = ensemble.client("a"), ensemble.client("b")

        async def tell(ensemble: Ensemble = ensemble, a: Client = a, b: Client = b) -> None:
            await a.call("create", "/x", b"")
            ensemble.service.delay_s = (3.9, 4.5)
            with pytest.raises(Unavailable):
                await a.call("set", "/x", b"1")
            ensemble.service.delay_s = (0.001, 0.002)
            node = await a.call("get", "/x")
            await asyncio.sleep(10)
            assert await b.call("get", "/x") == node
            outcomes.add(node.data)

        ensemble.loop.run_until_complete(tell())
        ensemble.loop.close()
    assert outcomes == {b"", b"1"}


@story
async def test_watches_outlive_connections(ensemble, a, b):
    await a.call("create", "/x", b"")
    await b.call("get", "/x", b.see)
    ensemble.service.cut("b")
    await asyncio.sleep(3)
    await a.call("set", "/x", b"1")
    await asyncio.sleep(2)
    assert not b.events
    ensemble.service.heal("b")
    assert await b.call("get", "/x") == Node(b"1", 1)
    assert b.events == [WatchEvent("changed", "/x")]
    await asyncio.sleep(10)
    assert len(b.events) == 1


@story
async def test_a_watch_without_an_answer_is_not_left(ensemble, a, b):
    await a.call("create", "/x", b"")
    ensemble.service.cut("b", requests=False)
    with pytest.raises(Unavailable):
        await b.call("get", "/x", b.see)
    ensemble.service.heal("b")
    await a.call("set", "/x", b"1")
    await asyncio.sleep(10)
    assert b.events == []


@story
async def test_expired_by_force(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    await b.call("exists", "/x", b.see)
    ensemble.service.expire(a.session.session_id)
    await ensemble.until(lambda: b.events)
    with pytest.raises((SessionExpired, Unavailable)):
        await a.call("get", "/x")
    await ensemble.until(lambda: a.expired, 2)
    assert len(a.expired) == 1


@story
async def test_the_service_restarts(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    await b.call("get", "/x", b.see)
    asked = [a.call("set", "/x", b"%d" % i) for i in range(3)]
    await asyncio.sleep(0.001)
    ensemble.service.stop()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, int | Unavailable) for each in outcomes)
    with pytest.raises(Unavailable):
        await a.call("get", "/x")
    await asyncio.sleep(100)
    ensemble.service.start()
    node = await b.call("get", "/x")
    done = [each for each in outcomes if isinstance(each, int)]
    assert len(done) <= node.version <= 3
    assert len(b.events) == (node.version > 0)
    a.loop.die()
    await asyncio.sleep(TIMEOUT_S + 1)
    assert await b.call("exists", "/x") is None
    assert a.expired == b.expired == []


@story
async def test_who_does_not_come_back_in_time_after_a_restart(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    ensemble.service.stop()
    ensemble.service.cut("a")
    await asyncio.sleep(100)
    ensemble.service.start()
    await asyncio.sleep(TIMEOUT_S - 1)
    assert await b.call("exists", "/x") == 0
    await asyncio.sleep(2)
    assert await b.call("exists", "/x") is None
    ensemble.service.heal("a")
    await ensemble.until(lambda: a.expired, 5)


@story
async def test_closing_without_a_way(ensemble, a, b):
    await a.call("create", "/x", b"", ephemeral=True)
    ensemble.service.cut("a")
    await a.call("close")
    assert await b.call("exists", "/x") == 0
    await asyncio.sleep(TIMEOUT_S)
    assert await b.call("exists", "/x") is None
