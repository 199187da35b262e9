"""One end of a simulated connection as its program has it: an asyncio transport."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from kbroker.common import Buffer
from kbroker.simulation.network.stack import SOCKET_BUFFER, Address, StackEnd

if TYPE_CHECKING:
    from kbroker.simulation.network.network import SimNetwork

DEFAULT_HIGH_WATER = 64 * 1024


class SimTransport(StackEnd, asyncio.Transport):
    """Nothing arrives here before `begin`."""

    def __init__(self, network: "SimNetwork", loop: asyncio.AbstractEventLoop, local: Address, remote: Address) -> None:
        StackEnd.__init__(self, network, loop, local, remote)
        asyncio.Transport.__init__(self, {"sockname": local, "peername": remote})
        self._protocol: asyncio.BaseProtocol | None = None
        self._ended = False
        self._writing_paused = False
        self.set_write_buffer_limits()

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._reading = True
        protocol.connection_made(self)
        self.peer._send()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # Writing.

    def write(self, data: Buffer) -> None:
        if self._ended:
            raise RuntimeError("write after write_eof")
        if self._closing or not data:
            return
        piece = bytes(data)
        self._outgoing.append(piece)
        self._outgoing_size += len(piece)
        self._send()
        if not self._writing_paused and self.get_write_buffer_size() > self._high_water:
            self._writing_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._ended = self._end_to_send = True
        self._send()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH_WATER if low is None else 4 * low
        self._high_water = high
        self._low_water = high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water, self._high_water

    def get_write_buffer_size(self) -> int:
        return max(0, self._outgoing_size - SOCKET_BUFFER)

    def _drained(self) -> None:
        """The peer has taken something: go on writing, or finish closing."""
        size = self.get_write_buffer_size()
        if self._writing_paused and size <= self._low_water:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing)
        if self._closing and size == 0:
            self._lose(None)

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
            self.peer._send()

    def _receive(self, piece: bytes) -> bytes:
        """Give bytes to the protocol; gives back those that it did not take because it stopped reading."""
        protocol = self._protocol
        try:
            if not isinstance(protocol, asyncio.BufferedProtocol):
                cast(asyncio.Protocol, protocol).data_received(piece)
                return b""
            while piece and self._reading and not self._closing:
                buffer = memoryview(protocol.get_buffer(len(piece))).cast("B")
                size = min(len(buffer), len(piece))
                buffer[:size] = piece[:size]
                protocol.buffer_updated(size)
                piece = piece[size:]
        except Exception as error:
            self._fail(error)
        return b"" if self._closing else piece

    def _receive_end(self) -> None:
        try:
            stay = cast(asyncio.Protocol, self._protocol).eof_received()
        except Exception as error:
            self._fail(error)
            return
        if not stay:
            self.close()

    # The end.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = self._end_to_send = True
        self._send()
        self.peer._send()
        if self.get_write_buffer_size() == 0:
            self._lose(None)

    def abort(self) -> None:
        if self._lost:
            return
        self._drop()
        self._reset_peer()
        self._lose(None)

    def _fail(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
        )
        self.abort()

    def _report_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)
