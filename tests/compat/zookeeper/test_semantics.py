"""The embedded coordination service against a real ZooKeeper: the same calls have the same results.

Random calls of two sessions go to both, to ZooKeeper through its adapter. The results, the errors and the events of
watches are compared. In half of the tests, connections to ZooKeeper are cut before and during calls.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import (
    ANY_VERSION,
    Check,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Node,
    Op,
    Set,
    Unavailable,
    WatchEvent,
)
from kbroker.coordination.zookeeper.open_session import open_session
from kbroker.coordination.zookeeper.session import ZooKeeperSession
from tests.compat.support import unique
from tests.compat.zookeeper.server import MAX_SESSION_S, Proxy, ZooKeeperServer
from tests.unit.support.memory_disk import make_environment, settle

ROOT = "/test"
PATHS = [f"{ROOT}/{name}" for name in ("a", "b", "a/x", "a/y", "b/x", "a/x/deep")]
CALLS = 400
CALLS_WITH_FAULTS = 150
SESSIONS = 2
WRITES = ("create", "set", "delete", "multi")

Snapshot = dict[str, tuple[bytes, int, int]]


@dataclass
class Caller:
    """One session. `events` are those of watches, with the number of the call that set the watch."""

    session: Coordination
    events: list[tuple[int, WatchEvent]] = field(default_factory=list)

    async def call(self, number: int, name: str, *arguments: Any) -> Any:
        """Return the result of a call, or the type of its error."""
        if name in ("get", "exists", "children"):
            path, watched = arguments
            arguments = (path, (lambda event: self.events.append((number, event))) if watched else None)
        try:
            if name == "create":
                path, data, ephemeral = arguments
                return await self.session.create(path, data, ephemeral=ephemeral)
            result = await getattr(self.session, name)(*arguments)
        except CoordinationError as error:
            return type(error)
        return self._own(result) if isinstance(result, Node) else result

    def _own(self, node: Node) -> tuple[bytes, int, bool]:
        """Session ids differ: compare whether this session owns the node."""
        return node.data, node.version, node.owner == self.session.session_id


def random_op(random: Random) -> Op:
    path, data = random.choice(PATHS), random.randbytes(3)
    version = random.choice([ANY_VERSION, ANY_VERSION, 0, 1])
    ops: list[Op] = [Create(path, data), Create(path, data, True), Set(path, data, version), Delete(path, version)]
    return random.choice([*ops, Check(path, max(version, 0))])


def random_call(random: Random) -> tuple[str, tuple[Any, ...]]:
    path = random.choice(PATHS)
    match random.choice(["get", "exists", "children", "create", "create", "set", "delete", "multi"]):
        case "multi":
            return "multi", ([random_op(random) for _ in range(random.randint(1, 4))],)
        case "create":
            return "create", (path, random.randbytes(3), random.random() < 0.3)
        case "set":
            return "set", (path, random.randbytes(3), random.choice([ANY_VERSION, 0, 1]))
        case "delete":
            return "delete", (path, random.choice([ANY_VERSION, ANY_VERSION, 0, 1]))
        case name:
            return name, (path, random.random() < 0.7)


async def snapshot(session: Coordination, owners: list[int]) -> Snapshot:
    """Return all nodes as (data, version, which session owns it)."""
    await session.sync()
    nodes = zip(PATHS, await session.get_many(PATHS), strict=True)
    return {
        path: (node.data, node.version, owners.index(node.owner) if node.owner else -1)
        for path, node in nodes
        if node is not None
    }


async def call_and_cut(caller: Caller, proxy: Proxy, random: Random, number: int, call: tuple[str, Any]) -> Any:
    """Call while the connection is cut, at a random moment; it may succeed, fail as usual, or be Unavailable."""
    name, arguments = call
    task = asyncio.create_task(caller.call(number, name, *arguments))
    for _ in range(random.randrange(8)):
        await asyncio.sleep(0)
    proxy.cut()
    return await task


async def synced(session: Coordination) -> None:
    """Wait until the session is connected, and until its earlier calls have been made or never will be."""
    while True:
        try:
            return await session.sync()
        except Unavailable:
            pass


def check_events(embedded: Caller, real: Caller) -> None:
    """Check that the events agree, in order. A watch that was lost with its connection has no other event."""
    lost = {number for number, event in real.events if event.kind == "lost"}
    assert [event for event in embedded.events if event[0] not in lost] == [
        event for event in real.events if event[1].kind != "lost"
    ]


@pytest.mark.parametrize("faults", [False, True], ids=["connected", "cut"])
@pytest.mark.parametrize("seed", range(3))
def test_the_embedded_service_behaves_like_zookeeper(zookeeper: ZooKeeperServer, seed: int, faults: bool) -> None:
    asyncio.run(compare(zookeeper, Random(seed), faults))


async def compare(zookeeper: ZooKeeperServer, random: Random, faults: bool) -> None:
    loop, chroot = asyncio.get_running_loop(), f"/{unique('semantics')}"
    store = await EmbeddedStore.open(make_environment(), "/data")
    proxies = [await Proxy(zookeeper.port).start() for _ in range(SESSIONS)]
    settings = [ZooKeeperSettings((proxy.address,), chroot, MAX_SESSION_S) for proxy in proxies]
    sessions: list[ZooKeeperSession] = [await open_session(loop, each) for each in settings]
    observer = await open_session(loop, ZooKeeperSettings((zookeeper.address,), chroot, MAX_SESSION_S))
    embedded = [Caller(store.session()) for _ in range(SESSIONS)]
    real = [Caller(session) for session in sessions]
    theirs, ours = ([caller.session.session_id for caller in callers] for callers in (real, embedded))
    for callers in (real, embedded):
        assert await callers[0].call(0, "create", ROOT, b"", False) is None
    unknown = 0
    for number in range(CALLS_WITH_FAULTS if faults else CALLS):
        index, call = random.randrange(SESSIONS), random_call(random)
        name, arguments = call
        if faults and random.random() < 0.15:
            expected = await call_and_cut(real[index], proxies[index], random, number, call)
        else:
            expected = await real[index].call(number, name, *arguments)
        if expected is Unavailable:
            assert faults
            unknown += 1
            await synced(sessions[index])
            was_made = await snapshot(observer, theirs) != await snapshot(embedded[0].session, ours)
            if name in WRITES and was_made:
                assert await embedded[index].call(number, name, *arguments) in (None, 1, 2, 3, 4, 5, 6, 7, 8, 9)
        else:
            assert await embedded[index].call(number, name, *arguments) == expected, (number, call)
        if faults:
            assert await snapshot(observer, theirs) == await snapshot(embedded[0].session, ours), (number, call)
    assert unknown > 0 or not faults
    # The ephemeral nodes of a session are deleted with it.
    await synced(sessions[1])
    await sessions[1].close()
    await embedded[1].session.close()
    await synced(sessions[0])
    assert await snapshot(observer, theirs) == await snapshot(embedded[0].session, ours)
    await settle()
    kinds = {event.kind for caller in embedded for _, event in caller.events}
    assert faults or kinds == {"created", "changed", "deleted", "children"}
    for pair in zip(embedded, real, strict=True):
        check_events(*pair)
    for session in (sessions[0], observer):
        await session.close()
    for proxy in proxies:
        await proxy.stop()
