"""The asyncio transport of one end of a simulated connection, and the listener that accepts connections."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable
from typing import cast

from kbroker.common import Buffer
from kbroker.simulation.network.link import Fabric
from kbroker.simulation.network.tcp import SOCKET_BUFFER, Address, TcpEndpoint

DEFAULT_HIGH_WATER = 64 * 1024


class SimDirectSocket:
    """Implements DirectSocket: sends at most what the buffers of both kernels have room for."""

    def __init__(self, transport: "SimTransport") -> None:
        self._transport = transport

    def fileno(self) -> int:
        return -1

    def send(self, data: Buffer, flags: int, /) -> int:
        return self._transport.send_directly(data)

    def end_stream(self) -> None:
        """Do nothing: whether the close resets the connection is up to the fabric."""


class SimTransport(TcpEndpoint, asyncio.Transport):
    """Receives nothing before `begin`."""

    def __init__(
        self,
        fabric: Fabric,
        loop: asyncio.AbstractEventLoop,
        local: Address,
        remote: Address,
        on_closed: Callable[[TcpEndpoint], None],
    ) -> None:
        TcpEndpoint.__init__(self, fabric, loop, local, remote, on_closed)
        asyncio.Transport.__init__(self, {"sockname": local, "peername": remote})
        self._protocol: asyncio.BaseProtocol | None = None
        self._writing_paused = False
        self.set_write_buffer_limits()

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._reading = True
        protocol.connection_made(self)
        self.peer._transmit()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # Writing.

    def write(self, data: Buffer) -> None:
        if self._closing or not data:
            return
        piece = bytes(data)
        self._send_queue.append(piece)
        self._queued_bytes += len(piece)
        self._transmit()
        self._maybe_pause_writing()

    def send_directly(self, data: Buffer) -> int:
        """Send past the write buffer, which is empty. Returns how many bytes were sent."""
        if self._closing:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        room = SOCKET_BUFFER - self._queued_bytes
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        piece = bytes(memoryview(data)[:room])
        self._send_queue.append(piece)
        self._queued_bytes += len(piece)
        self._transmit()
        return len(piece)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH_WATER if low is None else 4 * low
        self._high_water = high
        self._low_water = high // 4 if low is None else low
        self._maybe_pause_writing()

    def _maybe_pause_writing(self) -> None:
        if not self._writing_paused and self.get_write_buffer_size() > self._high_water:
            self._writing_paused = True
            self.get_protocol().pause_writing()

    def get_write_buffer_size(self) -> int:
        return max(0, self._queued_bytes - SOCKET_BUFFER)

    def _on_drained(self) -> None:
        """Resume writing, or finish closing, because the peer has received bytes."""
        size = self.get_write_buffer_size()
        if self._writing_paused and size <= self._low_water:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing)
        if self._closing and size == 0:
            self._mark_lost(None)

    def _resume_writing(self) -> None:
        if not self._lost:
            self.get_protocol().resume_writing()

    # Reading.

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            self.peer._transmit()

    def _receive(self, data: bytes) -> bytes:
        """Pass bytes to the protocol; return those that it did not accept because it stopped reading."""
        try:
            if not isinstance(self._protocol, asyncio.BufferedProtocol):
                cast(asyncio.Protocol, self._protocol).data_received(data)
                return b""
            while data and self._reading and not self._closing:
                protocol = self._protocol
                buffer = memoryview(protocol.get_buffer(len(data))).cast("B")
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                protocol.buffer_updated(size)
                data = data[size:]
        except Exception as error:
            self._protocol_failed(error)
        return b"" if self._closing else data

    def _receive_eof(self) -> None:
        try:
            keep_open = cast(asyncio.Protocol, self._protocol).eof_received()
        except Exception as error:
            self._protocol_failed(error)
            return
        if not keep_open:
            self.close()

    # The end.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = self._eof_queued = True
        self._transmit()
        self.peer._transmit()
        if self.get_write_buffer_size() == 0:
            self._mark_lost(None)

    def abort(self) -> None:
        if self._lost:
            return
        self._drop_queue()
        self._send_reset()
        self._mark_lost(None)

    def _protocol_failed(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
        )
        self.abort()

    def _notify_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)


def direct_socket(transport: asyncio.Transport) -> SimDirectSocket:
    assert isinstance(transport, SimTransport)
    return SimDirectSocket(transport)


ProtocolFactory = Callable[[], asyncio.BaseProtocol]

LOOPBACK = "127.0.0.1"


def host_of(loop: asyncio.AbstractEventLoop) -> str:
    """Return the host whose loop this is."""
    host: str = getattr(loop, "host", LOOPBACK)
    return host


class SimSocket:
    """The part of a listening socket that servers use."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address[0] or "0.0.0.0", self._address[1]

    def fileno(self) -> int:
        """Return a number that means that the socket is open."""
        return 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Do nothing: options have no effect here."""


class SimServer:
    """A listener. Closing it leaves its connections open, as in asyncio. `unbind` releases its addresses."""

    def __init__(
        self,
        factory: ProtocolFactory,
        addresses: list[Address],
        loop: asyncio.AbstractEventLoop,
        unbind: Callable[["SimServer"], None],
    ) -> None:
        self.factory = factory
        self.addresses = addresses
        self.loop = loop
        self.sockets: tuple[SimSocket, ...] = tuple(SimSocket(address) for address in addresses)
        self._unbind = unbind
        self._serving = False

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = True

    def close(self) -> None:
        self._serving = False
        self.sockets = ()
        self._unbind(self)
