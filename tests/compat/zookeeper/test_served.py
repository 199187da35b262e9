"""What only the served coordination service promises: credentials for all requests, and sessions that end with it."""

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
)

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.interface import WatchEvent
from kbroker.coordination.zookeeper.open_session import open_session
from kbroker.coordination.zookeeper.session import ZooKeeperSession
from tests.compat.support import DEADLINE_S, eventually, unique
from tests.compat.zookeeper.served import DIGEST, ServedCoordination
from tests.compat.zookeeper.server import MAX_SESSION_S, MIN_SESSION_S, ZooKeeperServer, running, until
from tests.unit.support.async_test import async_test

NODE = "/node"
CHANGES = 200


async def opened(server: ZooKeeperServer, timeout_s: float = MAX_SESSION_S, **settings: Any) -> ZooKeeperSession:
    loop = asyncio.get_running_loop()
    return await open_session(loop, ZooKeeperSettings((server.address,), "/kbroker", timeout_s, **settings))


@async_test
async def test_a_client_without_the_credentials_is_refused(tmp_path: Path) -> None:
    with running(ServedCoordination(tmp_path, digest=True)) as server:
        for settings in ({}, {"digest": "kbroker:wrong"}):
            with pytest.raises(Exception, match="AccessDenied"):
                await opened(server, **settings)
        session = await opened(server, digest=DIGEST)
        await session.create(NODE, b"secret")
        await session.close()
        client = KazooClient(server.address)
        client.start(DEADLINE_S)
        for call in (client.get, client.exists, client.get_children, client.delete, client.create):
            with pytest.raises(NoAuthError):
                call("/kbroker/node")
        client.stop()


@async_test
async def test_nodes_survive_a_restart_and_sessions_end_with_it(tmp_path: Path) -> None:
    with running(ServedCoordination(tmp_path)) as server:
        session = await opened(server)
        await session.create(NODE, b"kept")
        await session.create("/me", b"", ephemeral=True)
        expired: list[bool] = []
        session.on_expired(lambda: expired.append(True))
        former = session.session_id
        server.kill()
        server.start()
        await until(lambda: expired, "the end of the session")
        again = await opened(server)
        assert (await again.get(NODE)).data == b"kept"
        assert await again.exists("/me") is None
        assert again.session_id > former
        await again.close()


@async_test
async def test_sessions_do_not_expire_while_the_server_is_paused(tmp_path: Path) -> None:
    with running(ServedCoordination(tmp_path)) as server:
        session = await opened(server, MIN_SESSION_S)
        expired: list[bool] = []
        session.on_expired(lambda: expired.append(True))
        await session.create(NODE, b"", ephemeral=True)
        events: list[WatchEvent] = []
        await session.exists(NODE, events.append)
        server.pause()
        # kazoo notices that nothing responds, and connects again.
        await until(lambda: not session._is_connected, "the lost connection")
        await asyncio.sleep(2 * MIN_SESSION_S)
        server.resume()
        await until(lambda: events, "the new connection")
        assert events == [WatchEvent("lost", NODE)]
        assert (await session.get(NODE)).owner == session.session_id
        assert not expired
        await session.close()


@async_test
async def test_no_change_is_missed_between_the_reads_that_set_watches(tmp_path: Path) -> None:
    """Reads and writes of several clients share commits. Each read sets a watch, which must fire with the next change.

    A controller that misses the node of a broker would never unfence it.
    """
    with running(ServedCoordination(tmp_path)) as server:
        reader, *writers = [await opened(server) for _ in range(4)]
        await reader.create("/brokers", b"")
        seen: set[str] = set()
        changed = asyncio.Event()

        async def follow() -> None:
            while len(seen) < CHANGES:
                changed.clear()
                seen.update(await reader.children("/brokers", lambda event: changed.set()))
                if len(seen) < CHANGES:
                    await asyncio.wait_for(changed.wait(), DEADLINE_S)

        async def write(number: int) -> None:
            for index in range(number, CHANGES, len(writers)):
                await writers[number].create(f"/brokers/{index}", b"")

        await asyncio.gather(follow(), *(write(number) for number in range(len(writers))))
        for session in (reader, *writers):
            await session.close()


def test_kazoo_and_its_recipes_work(zookeeper: ZooKeeperServer) -> None:
    """An operator may look at the nodes with any client. The same calls have the same results with ZooKeeper."""
    client = KazooClient(zookeeper.address)
    client.start(DEADLINE_S)
    path = f"/{unique('kazoo')}"
    client.ensure_path(f"{path}/deep")
    created, stat = client.create(f"{path}/a", b"12345", include_data=True)
    assert (created, stat.version, stat.dataLength) == (f"{path}/a", 0, 5)
    names, stat = client.get_children(path, include_data=True)
    assert (sorted(names), stat.numChildren) == (["a", "deep"], 2)
    assert client.exists(f"{path}/missing") is None
    # A watch is set once, and is fired with one event, however often the node is read.
    events: list[Any] = []
    for _ in range(2):
        client.get(f"{path}/a", events.append)
    client.set(f"{path}/a", b"6")
    eventually(lambda: events, "the event")
    assert [(event.type, event.path) for event in events] == [("CHANGED", f"{path}/a")]
    data, stat = client.get(f"{path}/a")
    assert (data, stat.version, stat.ephemeralOwner) == (b"6", 1, 0)
    transaction = client.transaction()
    transaction.create(f"{path}/b")
    transaction.check(f"{path}/a", 7)
    transaction.delete(f"{path}/a")
    assert [type(result) for result in transaction.commit()] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    transaction = client.transaction()
    transaction.create(f"{path}/b", b"b")
    transaction.set_data(f"{path}/b", b"bb")
    transaction.check(f"{path}/b", 1)
    transaction.delete(f"{path}/a")
    created, stat, *rest = transaction.commit()
    assert (created, stat.version, stat.dataLength, rest) == (f"{path}/b", 1, 2, [True, True])
    with pytest.raises(NodeExistsError):
        client.create(f"{path}/b")
    assert client.sync(path) == path
    client.stop()


def test_what_is_not_supported_is_refused(served_coordination: ZooKeeperServer) -> None:
    client = KazooClient(served_coordination.address)
    client.start(DEADLINE_S)
    path = f"/{unique('refused')}"
    with pytest.raises(UnimplementedError):
        client.create(path, sequence=True)
    with pytest.raises(UnimplementedError):
        client.get_acls("/")
    assert client.exists(path) is None
    client.stop()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 0x100000),
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        # A correct connect request, then a request whose path is longer than the request.
        struct.pack(">iiqiqi?", 29, 0, 0, 5_000, 0, 0, False) + struct.pack(">iiii", 12, 1, 4, 500),
    ],
    ids=["large", "negative", "short", "overlong-string"],
)
def test_a_malformed_request_closes_the_connection(served_coordination: ZooKeeperServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served_coordination.port), DEADLINE_S) as connection:
        connection.settimeout(DEADLINE_S)
        connection.sendall(sent)
        while connection.recv(1000):
            pass
