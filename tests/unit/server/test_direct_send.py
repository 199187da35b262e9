"""Large responses on real sockets, which are sent from the page cache."""

import asyncio
import inspect
import os
import socket
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.runtime.page_cache import FileMapping
from kbroker.runtime.real_disk import RealFile
from kbroker.runtime.system import new_event_loop, system_environment
from kbroker.runtime.system_clock import SystemClock
from protocol.client import ClientConnection
from protocol.messages.k01_fetch import FetchRequest, FetchResponse
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.unit.support.client import Client, batch, records_of, values_of

MIB = 1 << 20
SIZE = 100_000
COUNT = 80
VALUES = [b"%02d" % number for number in range(COUNT)]
LENGTH = Struct(">i")
HOST = "127.0.0.1"


class RealBroker:
    """A broker on this machine, with a topic "t" whose partition has a log of 8 MB."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self.loop = loop
        self.path = path
        self.broker = Broker(
            system_environment(loop), BrokerConfig.load({"log.dirs": str(path), "listeners": f"PLAINTEXT://{HOST}:0"})
        )

    async def start(self) -> None:
        await self.broker.start()
        client = await self.client()
        await client.create_topic("t")
        now_ms = SystemClock().now_ms()
        for value in VALUES:
            assert (await client.produce("t", batch(value, size=SIZE, at_ms=now_ms))).error_code == 0
        client.close()

    @property
    def port(self) -> int:
        bound: int = self.broker._server._listening[0].sockets[0].getsockname()[1]
        return bound

    @property
    def log(self) -> bytes:
        return (self.path / "t-0" / "00000000000000000000.log").read_bytes()

    async def client(self) -> Client:
        _, client = await self.loop.create_connection(lambda: Client(self.loop), HOST, self.port)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)


def real_broker_test(story: Callable[..., Awaitable[None]]) -> Any:
    """Make a test from a coroutine whose first argument is a RealBroker, on the same event loop of each kind."""

    @wraps(story)
    def run(loop_name: str, tmp_path: Path, **fixtures: object) -> None:
        loop = new_event_loop() if loop_name == "uvloop" else asyncio.new_event_loop()
        if loop_name == "uvloop" and type(loop).__module__ == "asyncio.unix_events":
            pytest.skip("uvloop is not installed")
        asyncio.set_event_loop(loop)

        async def run_story() -> None:
            real = RealBroker(loop, tmp_path / "data")
            await real.start()
            try:
                async with asyncio.timeout(60):
                    await story(real, **fixtures)
            finally:
                await real.broker.stop()

        loop.run_until_complete(run_story())
        loop.close()

    own = inspect.signature(run, follow_wrapped=False).parameters
    others = list(inspect.signature(story).parameters.values())[1:]
    run.__signature__ = inspect.Signature([own["loop_name"], own["tmp_path"], *others])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop_name", ["uvloop", "asyncio"])(run)


class DirectSends:
    """Counts the bytes that were sent by sendfile."""

    size = 0


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> DirectSends:
    counted = DirectSends()
    sendfile = os.sendfile

    def count(*arguments: Any) -> int:
        size = sendfile(*arguments)
        counted.size += size
        return size

    monkeypatch.setattr(os, "sendfile", count)
    return counted


class SlowReader:
    """A client with a small receive buffer, which reads only in `next_fetch`."""

    def __init__(self, real: RealBroker) -> None:
        self.loop = real.loop
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self.socket.connect((HOST, real.port))
        self.socket.setblocking(False)
        self.connection = ClientConnection("slow")

    async def send_fetches(self, *requests: FetchRequest) -> None:
        frames = b"".join(self.connection.send(request, 12).frame for request in requests)
        await self.loop.sock_sendall(self.socket, frames)

    async def next_fetch(self, piece: int = 1 << 16, delay_s: float = 0.0) -> FetchResponse:
        while (response := self.connection.next_response()) is None:
            data = await self.loop.sock_recv(self.socket, piece)
            assert data
            self.connection.receive(data)
            await asyncio.sleep(delay_s)
        decoded: FetchResponse = response.decode(FetchResponse)
        return decoded


def everything(client: Client, offset: int = 0, size: int = 16 * MIB) -> FetchRequest:
    return client.fetch_request({("t", 0): offset}, max_bytes=size, partition_max_bytes=size)


def records_in(response: FetchResponse) -> bytes:
    return records_of(response.responses[0].partitions[0])


@pytest.mark.parametrize("version", [11, 12])
@real_broker_test
async def test_the_response_is_sent_from_the_page_cache(real: RealBroker, sent: DirectSends, version: int) -> None:
    client = await real.client()
    for size in (250_000, 350_000, MIB, 5 * MIB):
        before = sent.size
        response = await client.send(everything(client, 0, size), version, FetchResponse)
        records = records_in(response)
        assert records == real.log[: len(records)]
        assert size - SIZE - 100 < len(records) <= size
        assert sent.size - before > len(records) / 2


@real_broker_test
async def test_a_slow_reader_gets_all_responses_in_order(real: RealBroker, sent: DirectSends) -> None:
    helper, slow = await real.client(), SlowReader(real)
    offsets = (0, 30, 7, 55)
    await slow.send_fetches(*(everything(helper, offset) for offset in offsets))
    await real.until(lambda: real.broker._server.context.unsent_bytes > 0)
    # Other clients are served meanwhile, and hardly anything is copied for the slow one.
    assert (await helper.request(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code == 0
    assert real.broker._server.context.unsent_bytes < 100_000
    for offset in offsets:
        response = await slow.next_fetch()
        partition = response.responses[0].partitions[0]
        assert [value[:2] for value in values_of(partition)] == VALUES[offset:]
    await real.until(lambda: real.broker._server.context.unsent_bytes == 0)
    assert sent.size > 5 * MIB
    slow.socket.close()


@real_broker_test
async def test_responses_before_and_after_a_large_one_keep_their_order(real: RealBroker) -> None:
    client = await real.client()
    order: list[int] = []
    responses: list[asyncio.Future[Any]] = []
    for number in range(12):
        response: asyncio.Future[Any]
        if number % 3 == 1:
            response = client.send(everything(client, number, 150_000 * number), 12, FetchResponse)
        else:
            response = client.send(ApiVersionsRequest(), 0, ApiVersionsResponse)
        response.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        responses.append(response)
    await asyncio.gather(*responses)
    assert order == list(range(12))


@real_broker_test
async def test_many_connections(real: RealBroker) -> None:
    clients = [await real.client() for _ in range(50)]
    for client in clients[::2]:
        client.transport.pause_reading()
    waiting = [client.send_fetch({("t", 0): 0}, partition_max_bytes=2 * MIB) for client in clients]
    await asyncio.gather(*waiting[1::2])
    for client in clients[::2]:
        client.transport.resume_reading()
    expected = real.log[: 20 * (SIZE + 100)]
    for response in await asyncio.gather(*waiting):
        records = records_in(response)
        assert len(records) > MIB
        assert records[:MIB] == expected[:MIB]


@real_broker_test
async def test_a_client_that_closes_in_the_middle(real: RealBroker) -> None:
    helper = await real.client()
    server = real.broker._server
    for reset in (False, True):
        slow = SlowReader(real)
        await slow.send_fetches(everything(helper), everything(helper))
        await real.until(lambda: server.context.unsent_bytes > 0)
        assert await real.loop.sock_recv(slow.socket, 1000)
        if reset:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, Struct("ii").pack(1, 0))
        slow.socket.close()
        await real.until(lambda: len(server.connections) == 1)
        assert server.context.unsent_bytes == 0
    assert records_in(await helper.send(everything(helper), 12, FetchResponse)) == real.log


@real_broker_test
async def test_a_topic_that_is_deleted_while_it_is_sent_arrives_complete(real: RealBroker) -> None:
    helper, slow = await real.client(), SlowReader(real)
    await slow.send_fetches(everything(helper))
    await real.until(lambda: real.broker._server.context.unsent_bytes > 0)
    log = real.log
    await helper.delete_topic("t")
    await real.until(lambda: not (real.path / "t-0").exists())
    assert records_in(await slow.next_fetch()) == log
    slow.socket.close()


@real_broker_test
async def test_pages_that_are_not_in_memory_are_read_in_a_thread(
    real: RealBroker, sent: DirectSends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third MiB is reported as not in memory; a sendfile of it would wait for the disk."""
    resident_bytes, pread_nowait = FileMapping.resident_bytes, RealFile.pread_nowait

    def is_missing(offset: int) -> bool:
        return offset // MIB % 3 == 2

    def resident_of_others(self: FileMapping, size: int, offset: int) -> int:
        return 0 if is_missing(offset) else resident_bytes(self, min(size, MIB - offset % MIB), offset)

    def read_others(self: RealFile, size: int, offset: int) -> memoryview | None:
        return None if is_missing(offset) else pread_nowait(self, size, offset)

    client = await real.client()
    monkeypatch.setattr(FileMapping, "resident_bytes", resident_of_others)
    monkeypatch.setattr(RealFile, "pread_nowait", read_others)
    for offset in (0, 1, 25):
        records = records_in(await client.send(everything(client, offset), 12, FetchResponse))
        assert records == real.log[-len(records) :]
        assert len(records) > 5 * MIB
    assert 10 * MIB < sent.size < 18 * MIB


@real_broker_test
async def test_a_transport_that_encrypts_gets_the_response_itself(
    real: RealBroker, sent: DirectSends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real.broker._server.context, "direct_socket", lambda transport: None)
    client = await real.client()
    assert records_in(await client.send(everything(client), 12, FetchResponse)) == real.log
    assert sent.size == 0


@real_broker_test
async def test_a_broker_that_stops_does_not_reset_connections_with_unread_requests(real: RealBroker) -> None:
    helper, slow = await real.client(), SlowReader(real)
    await slow.send_fetches(helper.fetch_request({("t", 0): COUNT}, max_wait_ms=30_000))
    await real.until(lambda: len(real.broker.services.replicas.purgatory) == 1)
    (waiting,) = (connection for connection in real.broker._server.connections if connection.is_waiting)
    frames = slow.connection.send(ApiVersionsRequest(), 0).frame * 1000

    def is_full() -> bool:
        """Whether the broker has stopped reading, and the buffers of both kernels are full."""
        has_stopped = not waiting._backlog.is_reading
        try:
            slow.socket.send(frames)
        except BlockingIOError:
            return has_stopped
        return False

    await real.until(is_full)
    await real.broker.stop()
    while await real.loop.sock_recv(slow.socket, 1 << 16):
        pass
    slow.socket.close()
