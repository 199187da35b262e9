"""What the ZooKeeper adapter promises when connections are lost, servers do not respond, and sessions expire."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.interface import (
    CoordinationError,
    Create,
    NodeExists,
    SessionExpired,
    TooLarge,
    Unavailable,
    WatchEvent,
)
from kbroker.coordination.zookeeper.client import MAX_REQUEST_BYTES, OPEN_ACL_UNSAFE, AccessDenied, transaction
from kbroker.coordination.zookeeper.open_session import ZooKeeperUnusable, open_session
from kbroker.coordination.zookeeper.session import MAX_IN_FLIGHT, ZooKeeperSession
from scripts.ports import free_ports
from tests.compat.support import unique
from tests.compat.zookeeper.server import MAX_SESSION_S, MIN_SESSION_S, Proxy, ZooKeeperServer, running, until
from tests.unit.support.async_test import async_test

NODE = "/node"


class Sessions:
    """Opens sessions below one new chroot: directly, or through `proxy`."""

    def __init__(self, server: ZooKeeperServer, stack: AsyncExitStack, proxy: Proxy) -> None:
        self.chroot = f"/{unique('faults')}"
        self.server = server
        self.proxy = proxy
        self._stack = stack

    async def open(
        self, timeout_s: float = MAX_SESSION_S, *, proxied: bool = False, **settings: Any
    ) -> ZooKeeperSession:
        address = self.proxy.address if proxied else self.server.address
        # On a busy machine the server may not respond for longer than the default, 18 s.
        connecting = {"connection_timeout_s": MAX_SESSION_S}
        all_settings = ZooKeeperSettings((address,), self.chroot, timeout_s, **connecting | settings)
        session = await open_session(asyncio.get_running_loop(), all_settings)
        self._stack.push_async_callback(session.close)
        return session


@asynccontextmanager
async def sessions(server: ZooKeeperServer) -> AsyncIterator[Sessions]:
    async with AsyncExitStack() as stack:
        proxy = await Proxy(server.port).start()
        stack.push_async_callback(proxy.stop)
        # Sessions are closed before their proxy stops.
        stack.callback(proxy.resume)
        yield Sessions(server, stack, proxy)


async def outcome(call: Awaitable[Any]) -> Any:
    """Return the result of a call, or the type of its error."""
    try:
        return await call
    except CoordinationError as error:
        return type(error)


def shorten_timeout(session: ZooKeeperSession, timeout_s: float) -> None:
    """Let calls fail after this time, without a session that expires as early."""
    session._timeout_s = timeout_s
    if session._timer is not None:
        session._timer.cancel()
        session._timer = None


async def available(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a read until ZooKeeper can be reached."""
    while True:
        try:
            return await call()
        except Unavailable:
            pass


@async_test
async def test_an_event_comes_before_the_result_of_a_later_read(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        reader, writer = await opened.open(), await opened.open()
        await writer.create(NODE, b"")
        events: list[WatchEvent] = []
        for version in range(1, 61):
            await reader.get(NODE, events.append)
            write = asyncio.create_task(writer.set(NODE, b""))
            reads = [reader.get(NODE) for _ in range(10)]
            for read in reads:
                if (await read).version == version:
                    assert len(events) == version
            await write
            await until(lambda expected=version: len(events) == expected, "the event")  # type: ignore[misc]


@async_test
async def test_watches_are_reported_as_lost_when_the_session_is_connected_again(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        session, other = await opened.open(proxied=True), await opened.open()
        await other.create(NODE, b"")
        events: list[Any] = []
        await session.get(NODE, events.append)
        await session.children(NODE, events.append)
        await session.exists("/missing", events.append)
        opened.proxy.cut()
        await other.set(NODE, b"changed meanwhile")
        # A call that waits for the connection is sent after the watches were reported.
        read = asyncio.create_task(available(partial(session.get, NODE, events.append)))
        read.add_done_callback(lambda _: events.append("read"))
        assert (await read).data == b"changed meanwhile"
        await until(lambda: "read" in events, "the callback")
        # One event for a function that watched the data and the children.
        assert events == [WatchEvent("lost", NODE), WatchEvent("lost", "/missing"), "read"]
        await other.set(NODE, b"changed again")
        await until(lambda: len(events) == 4, "the event of the new watch")
        assert events[3] == WatchEvent("changed", NODE)


@async_test
async def test_a_session_and_its_nodes_survive_a_restart_of_the_server(apache_zookeeper: ZooKeeperServer) -> None:
    async with sessions(apache_zookeeper) as opened:
        session = await opened.open()
        expired: list[bool] = []
        session.on_expired(lambda: expired.append(True))
        session_id = session.session_id
        await session.create(NODE, b"", ephemeral=True)
        apache_zookeeper.kill()
        apache_zookeeper.start()
        assert (await available(partial(session.get, NODE))).owner == session_id == session.session_id
        assert not expired


@async_test
async def test_a_connection_that_gets_no_response_is_replaced_before_the_session_expires(
    zookeeper: ZooKeeperServer,
) -> None:
    async with sessions(zookeeper) as opened:
        opened.proxy.unserved = 1
        timeout_s = 15.0
        session = await opened.open(timeout_s, proxied=True, connection_timeout_s=timeout_s)
        assert opened.proxy.connections >= 2
        await session.create(NODE, b"", ephemeral=True)
        opened.proxy.unserved = 1
        opened.proxy.cut()
        assert (await available(partial(session.get, NODE))).owner == session.session_id
        assert opened.proxy.connections >= 4


@pytest.mark.parametrize("paused", ["connection", "server"])
@async_test
async def test_a_call_fails_in_time_when_nothing_responds(zookeeper: ZooKeeperServer, paused: str) -> None:
    """Even while requests are sent, in which case kazoo does not notice that nothing is received."""
    async with sessions(zookeeper) as opened:
        session = await opened.open(proxied=True)
        shorten_timeout(session, 0.5)
        await session.create(NODE, b"")
        if paused == "server":
            zookeeper.pause()
        else:
            opened.proxy.stall()
        calls: list[asyncio.Task[Any]] = []
        try:
            while not calls or not calls[0].done():
                calls.append(asyncio.create_task(outcome(session.get(NODE))))
                await asyncio.sleep(0.05)
            assert calls[0].result() is Unavailable
            # The connection is closed, and opened again.
            await until(lambda: opened.proxy.connections > 1, "a new connection")
        finally:
            zookeeper.resume()
            opened.proxy.resume()
        await asyncio.gather(*calls)
        assert (await available(partial(session.get, NODE))).version == 0


@pytest.mark.parametrize("known", [True, False], ids=["known", "not-known-yet"])
@async_test
async def test_a_write_that_was_not_sent_is_never_made(zookeeper: ZooKeeperServer, known: bool) -> None:
    """kazoo would send it as soon as it is connected again. `known`: whether the session knows that it is not."""
    async with sessions(zookeeper) as opened:
        session, observer = await opened.open(proxied=True), await opened.open()
        shorten_timeout(session, 0.3)
        opened.proxy.stall()
        opened.proxy.cut()
        await until(lambda: not session._is_connected, "the lost connection")
        session._is_connected = not known
        assert await outcome(session.create(NODE, b"")) is Unavailable
        opened.proxy.cut()
        opened.proxy.resume()
        await available(session.sync)
        await observer.sync()
        assert await observer.exists(NODE) is None


@async_test
async def test_a_call_that_was_not_sent_waits_for_the_connection(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        session = await opened.open(proxied=True)
        opened.proxy.stall(requests=False)
        calls = [asyncio.create_task(outcome(session.exists(NODE))) for _ in range(MAX_IN_FLIGHT + 10)]
        await until(lambda: len(session._in_flight) == MAX_IN_FLIGHT, "the requests")
        opened.proxy.cut()
        opened.proxy.resume()
        assert await asyncio.gather(*calls) == [Unavailable] * MAX_IN_FLIGHT + [None] * 10


@async_test
async def test_the_owner_shows_whether_a_write_without_a_response_was_made(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        session, observer = await opened.open(proxied=True), await opened.open()
        opened.proxy.stall(requests=False)
        write = asyncio.create_task(outcome(session.create(NODE, b"", ephemeral=True)))
        while await observer.exists(NODE) is None:
            pass
        opened.proxy.cut()
        opened.proxy.resume()
        assert await write is Unavailable
        assert await outcome(session.create(NODE, b"", ephemeral=True)) is NodeExists
        assert (await session.get(NODE)).owner == session.session_id != observer.session_id


@async_test
async def test_a_session_ends_while_the_event_loop_hangs(zookeeper: ZooKeeperServer) -> None:
    """kazoo's thread goes on: without the watchdog its heartbeats would keep the session."""
    async with sessions(zookeeper) as opened:
        session = await opened.open(MIN_SESSION_S)
        expired: list[bool] = []
        session.on_expired(lambda: expired.append(True))
        await session.create(NODE, b"", ephemeral=True)
        observer = KazooClient(zookeeper.address)
        observer.start()
        try:
            deadline = time.monotonic() + 60
            while observer.exists(opened.chroot + NODE):
                assert time.monotonic() < deadline, "the session has not ended"
        finally:
            observer.stop()
            observer.close()
        await until(lambda: expired, "the session has expired")


@async_test
async def test_a_session_that_expires_is_not_replaced(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sessions(zookeeper) as opened:
        session, observer = await opened.open(MIN_SESSION_S, proxied=True), await opened.open()
        expired: list[bool] = []
        session.on_expired(lambda: expired.append(True))
        await session.create(NODE, b"", ephemeral=True)
        deleted: list[WatchEvent] = []
        await observer.exists(NODE, deleted.append)
        session_id = session.session_id
        # As if the event loop were too late to end kazoo's thread.
        monkeypatch.setattr(session._client, "end", lambda on_ended: on_ended())
        opened.proxy.stall()
        await until(lambda: deleted, "the end of the ephemeral node")
        assert not expired, "the session cannot know it yet"
        opened.proxy.cut()
        opened.proxy.resume()
        await until(lambda: expired, "the session has expired")
        # It never connects again.
        await until(lambda: thread_has_ended(session), "the end of kazoo's thread")
        for call in (session.get(NODE), session.create(NODE, b""), session.sync()):
            assert await outcome(call) is SessionExpired
        assert session.session_id == session_id
        await session.close()
        assert expired == [True]


def thread_has_ended(session: ZooKeeperSession) -> bool:
    return bool(session._client._connection.connection_stopped.is_set())


@async_test
async def test_the_session_timeout_is_the_one_that_the_server_chooses(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as clients:
        within = (MIN_SESSION_S + MAX_SESSION_S) / 2
        for asked_s, chosen_s in ((within, within), (MIN_SESSION_S / 2, MIN_SESSION_S), (99, MAX_SESSION_S)):
            session = await clients.open(asked_s)
            assert session.timeout_ms == round(1000 * chosen_s)


@async_test
async def test_requests_that_are_too_large_are_refused_before_they_are_sent(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        session = await opened.open(proxied=True)
        empty = transaction([Create(NODE, b"")], opened.chroot, OPEN_ACL_UNSAFE)
        largest = MAX_REQUEST_BYTES - 8 - len(empty.serialize())
        assert await outcome(session.create(NODE, bytes(largest + 1))) is TooLarge
        await session.create(NODE, bytes(largest))
        assert len((await session.get(NODE)).data) == largest
        assert opened.proxy.connections == 1


@async_test
async def test_a_session_that_is_closed_leaves_nothing(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        session, observer = await opened.open(), await opened.open()
        expired: list[bool] = []
        session.on_expired(lambda: expired.append(True))
        await session.create(NODE, b"", ephemeral=True)
        await session.close()
        assert await observer.exists(NODE) is None
        assert await outcome(session.get(NODE)) is SessionExpired
        assert thread_has_ended(session)
        assert not expired


async def refusal(settings: ZooKeeperSettings) -> str:
    with pytest.raises(ZooKeeperUnusable) as failure:
        await open_session(asyncio.get_running_loop(), settings)
    return str(failure.value)


def test_an_ensemble_that_cannot_be_reached_is_refused() -> None:
    address = f"127.0.0.1:{free_ports()}"
    message = asyncio.run(refusal(ZooKeeperSettings((address,), "/kbroker", 1.0, 0.3)))
    assert message.startswith(f"cannot connect to ZooKeeper at {address}/kbroker in 0.3 s: ")
    assert "Connection refused" in message


@async_test
async def test_a_server_that_does_not_respond_is_refused(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        opened.proxy.stall()
        message = await refusal(ZooKeeperSettings((opened.proxy.address,), "", 1.0, 0.3))
        assert message.endswith("in 0.3 s: no response")


def test_an_ensemble_without_a_quorum_is_refused(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    server.make_quorum_of_two()
    with running(server):
        message = asyncio.run(refusal(ZooKeeperSettings((server.address,), "", 10.0, 10.0)))
    assert message.endswith(
        "in 10 s: the server closes the connection, as it does while the ensemble has no quorum or is read-only"
    )


@async_test
async def test_the_nodes_of_an_apache_kafka_cluster_are_refused(zookeeper: ZooKeeperServer) -> None:
    async with sessions(zookeeper) as opened:
        session = await opened.open()
        for path in ("/brokers", "/brokers/ids"):
            await session.create(path, b"")
        message = await refusal(ZooKeeperSettings((zookeeper.address,), opened.chroot))
        assert "has the metadata of an Apache Kafka cluster (/brokers/ids)" in message
        assert await session.children("/brokers") == ["ids"]


@async_test
async def test_nodes_with_an_acl_need_the_digest(apache_zookeeper: ZooKeeperServer) -> None:
    async with sessions(apache_zookeeper) as opened:
        owner = await opened.open(digest="kbroker:secret", set_acl=True)
        await owner.create(NODE, b"secret")
        address = apache_zookeeper.address
        settings = ZooKeeperSettings((address,), opened.chroot, MAX_SESSION_S, digest="kbroker:wrong")
        assert "AccessDenied" in await refusal(settings)
        assert (await (await opened.open(digest="kbroker:secret")).get(NODE)).data == b"secret"


@async_test
async def test_a_start_protects_nodes_that_exist(apache_zookeeper: ZooKeeperServer) -> None:
    async with sessions(apache_zookeeper) as opened:
        former = await opened.open(digest="kbroker:secret")
        secrets = ("/kbroker/secret", "/kbroker/users/alice")
        for path in ("/kbroker", "/kbroker/cluster-id", "/kbroker/users", *secrets):
            if await former.exists(path) is None:
                await former.create(path, b"secret")
        stranger = await opened.open()
        assert (await stranger.get(secrets[0])).data == b"secret"
        await opened.open(digest="kbroker:secret", set_acl=True)
        for path in secrets:
            with pytest.raises(AccessDenied):
                await stranger.get(path)
            with pytest.raises(AccessDenied):
                await stranger.delete(path)
            # A broker that has the digest, and has not been restarted with zookeeper.set.acl yet.
            assert (await former.get(path)).data == b"secret"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not run: needs openssl to create a certificate")
@async_test
async def test_a_session_over_tls(tmp_path: Path) -> None:
    key, certificate, both = (tmp_path / name for name in ("key.pem", "certificate.pem", "both.pem"))
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    server = ZooKeeperServer(tmp_path)
    server.require_tls(certificate, both)
    with running(server):
        files = {"truststore": str(certificate), "keystore": str(both)}
        settings = ZooKeeperSettings((server.address,), "/kbroker", MAX_SESSION_S, tls=True, **files)
        session = await open_session(asyncio.get_running_loop(), settings)
        await session.create(NODE, bytes(500_000))
        assert [node and len(node.data) for node in await session.get_many([NODE] * 10)] == [500_000] * 10
        await session.close()
        untrusted = await refusal(replace(settings, truststore="", connection_timeout_s=3.0))
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted


def test_files_for_tls_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    settings = ZooKeeperSettings(("127.0.0.1:1",), tls=True, truststore=str(tmp_path / "missing.pem"))
    assert "missing.pem: No such file" in asyncio.run(refusal(settings))
