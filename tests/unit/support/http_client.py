"""Requests to the metrics listener of a simulated broker."""

import asyncio

from tests.unit.support.simulated_broker import Machine

PORT = 9100
LISTENER = {"kbroker_metrics_listener": f"broker:{PORT}"}


class HttpClient(asyncio.Protocol):
    """Sends bytes and collects the response."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.received = bytearray()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


async def open_connection(m: Machine) -> HttpClient:
    _, client = await m.loop.create_connection(lambda: HttpClient(m.loop), "broker", PORT)
    return client


async def send(m: Machine, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a request in pieces; returns (status, headers, body)."""
    client = await open_connection(m)
    for piece in pieces:
        client.transport.write(piece)
        await asyncio.sleep(0.01)
    await client.closed
    head, _, body = bytes(client.received).partition(b"\r\n\r\n")
    status_line, *header_lines = head.decode().split("\r\n")
    return int(status_line.split()[1]), dict(line.split(": ", 1) for line in header_lines), body


async def get(m: Machine, path: str = "/metrics") -> tuple[int, dict[str, str], bytes]:
    return await send(m, f"GET {path} HTTP/1.1\r\nHost: broker\r\n\r\n".encode())
