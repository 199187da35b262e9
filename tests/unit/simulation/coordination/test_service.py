"""The guarantees of the simulated coordination service to its sessions, and what it does not guarantee."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.coordination.interface import (
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
async def test_an_oversized_multi_is_not_sent(s):
    half = bytes(600_000)
    with pytest.raises(TooLarge):
        await s.a.call("multi", [Set("/x", half), Set("/x", half)])
    await s.a.call("multi", [])
    await s.a.call("set", "/x", half)
    assert (await s.a.call("get", "/x")).version == 1


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


# Watches.


@with_node
async def test_a_notification_is_lost_with_the_connection(s):
    await s.b.call("get", "/x", s.b.watch)
    s.service.cut("b", requests=False)
    await s.a.call("set", "/x", b"1")
    await asyncio.sleep(5)
    s.service.heal("b")
    await s.until(lambda: s.b.events, 5)
    assert s.b.events in ([LOST], [CHANGED]), "the connection may have survived"


# The end of sessions.


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


# Cuts.


@with_node
async def test_a_request_without_a_connection_waits_and_times_out(s):
    s.service.cut("a")
    await asyncio.sleep(5)
    before = s.loop.time()
    with pytest.raises(Unavailable):
        await s.a.call("get", "/x")
    assert 3.9 <= s.loop.time() - before <= 4.1


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
