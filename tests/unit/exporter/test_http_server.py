"""The HTTP server of the metrics, over a simulated network."""

import asyncio

import pytest

from kbroker.exporter import http_server
from tests.unit.support.client import batch
from tests.unit.support.http_client import LISTENER, get, open_connection, send
from tests.unit.support.simulated_broker import Machine, broker_test


@broker_test(**LISTENER)
async def test_paths_and_methods(m: Machine) -> None:
    assert await get(m, "/healthz") == (
        200,
        {"Content-Type": "text/plain; charset=utf-8", "Content-Length": "3", "Connection": "close"},
        b"ok\n",
    )
    assert (await get(m, "/metrics?x=1"))[0] == 200
    assert (await get(m, "/other"))[0] == 404
    status, headers, body = await send(m, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000
    status, headers, _ = await send(m, b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@broker_test(**LISTENER)
async def test_a_broker_that_cannot_write_is_not_healthy(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    m.disk.capacity = m.disk.used
    await client.produce("t", batch(b"a"))
    await asyncio.sleep(0.1)
    status, _, body = await get(m, "/healthz")
    assert (status, body) == (503, b"the broker cannot write to its disk: No space left on device\n")
    assert b"\nkbroker_write_health 2\n" in (await get(m, "/metrics"))[2]
    m.disk.capacity = None
    await asyncio.sleep(3)
    assert (await get(m, "/healthz"))[0] == 200
    assert b"\nkbroker_write_health 1\n" in (await get(m, "/metrics"))[2]


@broker_test(**LISTENER)
async def test_an_idle_broker_with_a_full_disk_is_not_healthy(m: Machine) -> None:
    await (await m.client()).create_topic("t")
    m.disk.capacity = m.disk.used
    assert (await get(m, "/livez"))[0] == 200
    status, _, body = await get(m, "/healthz")
    assert (status, body) == (503, b"the broker cannot write to its disk: No space left on device\n")
    m.disk.capacity = None
    await asyncio.sleep(3)
    assert (await get(m, "/healthz"))[0] == 200


@broker_test(**LISTENER)
async def test_a_broker_with_an_offline_log_is_alive_but_not_ready(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    m.disk.faults.fail_next("write", lambda path: path.endswith(".log"))
    await client.produce("t", batch(b"a"))
    status, _, body = await get(m, "/healthz")
    assert (status, body) == (503, b"logs offline: 1; the broker's log says why\n")
    assert (await get(m, "/livez"))[::2] == (200, b"ok\n")


@broker_test(**LISTENER)
@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"GET /healthz HTTP/1.1\r\n\r\n"], 200),
        ([b"GET /hea", b"lthz HTTP/1.0\r", b"\n\r", b"\n"], 200),
        ([b"GET /healthz\r\n\r\n"], 400),
        ([b"\r\n\r\n"], 400),
        ([b"GET  /healthz HTTP/1.1\r\n\r\n"], 400),
        ([b"GET healthz HTTP/1.1\r\n\r\n"], 400),
        ([b"GET /healthz HTTP/2\r\n\r\n"], 400),
        ([b"\x16\x03\x01\x02\r\n\r\n"], 400),
        ([b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n"], 431),
        ([b"x" * 5000, b"x" * 5000], 431),
    ],
)
async def test_unusual_requests(m: Machine, pieces: list[bytes], status: int) -> None:
    assert (await send(m, *pieces))[0] == status


@broker_test(**LISTENER)
async def test_a_client_without_a_complete_request_is_closed(m: Machine) -> None:
    client = await open_connection(m)
    client.transport.write(b"GET /met")
    await asyncio.sleep(http_server.TIMEOUT_S - 1)
    assert not client.closed.done()
    await asyncio.sleep(2)
    assert client.closed.done()


@broker_test(**LISTENER)
async def test_the_number_of_connections_is_limited(m: Machine) -> None:
    idle = [await open_connection(m) for _ in range(http_server.MAX_CONNECTIONS)]
    refused = await open_connection(m)
    await refused.closed
    assert refused.received == b""
    assert not any(client.closed.done() for client in idle)
    for client in idle:
        client.transport.abort()
    await asyncio.sleep(0.1)
    assert (await get(m, "/healthz"))[0] == 200


@broker_test(**LISTENER)
async def test_concurrent_requests_share_a_scrape(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    scrapes = []
    make = m.broker.exporter.scrape_page

    async def counted() -> list[bytes]:
        scrapes.append(1)
        await asyncio.sleep(1)
        return await make()

    monkeypatch.setattr(m.broker.exporter, "scrape_page", counted)
    responses = await asyncio.gather(*(get(m) for _ in range(5)))
    assert {status for status, _, _ in responses} == {200}
    assert len(scrapes) == 1
    await get(m)
    assert len(scrapes) == 2


@broker_test(**LISTENER)
async def test_a_failed_scrape_returns_status_500(
    m: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> list[bytes]:
        raise KeyError("x")

    monkeypatch.setattr(m.broker.exporter, "scrape_page", broken)
    assert (await get(m))[0] == 500
    assert any(record.message == "scrape failed error=KeyError" for record in caplog.records)


@broker_test(**LISTENER)
async def test_the_broker_stops_while_a_client_is_connected(m: Machine) -> None:
    client = await open_connection(m)
    await m.stop()
    await asyncio.sleep(0.1)
    assert client.closed.done()
    await m.start()
    assert (await get(m, "/healthz"))[0] == 200
