"""One end of a simulated connection."""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast
from zlib import crc32

from kbroker.model import Buffer

if TYPE_CHECKING:
    from kbroker.simulation.network import SimNetwork

Address = tuple[str, int]

# What two kernels hold of a stream before the writer's own buffer fills.
SOCKET_BUFFER = 128 * 1024
DEFAULT_HIGH_WATER = 64 * 1024
SMALL_PIECE = 8
# How long a stack sends the same bytes again to one that does not answer before it gives the connection up, and how
# long until it does so next when there is a way again, in seconds.
STACK_TIMEOUT_S = (5.0, 15.0)
SEND_AGAIN_S = (0.01, 0.5)
# The chance that a process has not read all that has arrived when it dies: its stack resets the connection then.
UNREAD_CHANCE = 0.5


def timed_out() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


class SimTransport(asyncio.Transport):
    """Holds what was written here until `peer` has taken it. Nothing arrives here before `begin`.

    Its protocol lives on `loop`. `gone`: that process has died, so nothing more is done for it.
    """

    peer: "SimTransport"

    def __init__(self, network: "SimNetwork", loop: asyncio.AbstractEventLoop, local: Address, remote: Address) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.name = f"{local[0]}:{local[1]}"
        self.host = local[0]
        self.gone = False
        self._network = network
        self._link = network.link(local[0], remote[0])
        self._loop = loop
        self._protocol: asyncio.BaseProtocol | None = None
        self._outgoing: deque[bytes] = deque()
        self._outgoing_size = 0
        self._arrival: asyncio.TimerHandle | None = None
        # Nobody answers at the other end: the stack sends again until `_patience` is over.
        self._unanswered = False
        self._patience: asyncio.TimerHandle | None = None
        self._ended = False
        self._end_to_send = False
        self._reading = False
        self._closing = False
        self._lost = False
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

    def _send(self) -> None:
        """Something waits to arrive at the peer: let it travel, unless something is on its way already."""
        peer = self.peer
        if self._arrival is not None or not (self._outgoing or self._end_to_send):
            return
        if self._unanswered:
            self._send_in_vain()
        elif peer._closing:
            # Its stack answers for it.
            self._arrival = self._network.loop.call_later(self._link.delay(), self._arrive)
        elif peer._reading:
            self._arrival = peer._loop.call_later(self._link.delay(), self._arrive)

    def _send_in_vain(self) -> None:
        if self._patience is None:
            timeout = self._network.random.uniform(*STACK_TIMEOUT_S)
            self._patience = self._network.loop.call_later(timeout, self._give_up)

    def _give_up(self) -> None:
        self._patience = None
        self._end(timed_out())

    def peer_is_back(self) -> None:
        """Its host is up again and does not know of this connection; it says so when something arrives there."""
        self._unanswered = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._network.loop.call_later(self._network.random.uniform(*SEND_AGAIN_S), self._send)

    def _arrive(self) -> None:
        self._arrival = None
        peer = self.peer
        if peer._closing:
            # Nobody reads there any more.
            self._end_to_send = False
            if self._outgoing:
                self._reset()
        elif not peer._reading:
            return
        elif self._outgoing:
            piece = self._take_piece()
            if self._network.trace is not None:
                self._network.trace("bytes", self.name, peer.name, len(piece), crc32(piece))
            left = peer._receive(piece)
            if left:
                self._outgoing.appendleft(left)
                self._outgoing_size += len(left)
            self._drained()
            self._send()
        else:
            self._end_to_send = False
            peer._receive_end()

    def _take_piece(self) -> bytes:
        """All that waits, or as much of it as the seed says."""
        random = self._network.random
        stream = b"".join(self._outgoing)
        chance = random.random()
        size = len(stream)
        if chance < 0.1:
            size = random.randint(1, min(size, SMALL_PIECE))
        elif chance < 0.4:
            size = random.randint(1, size)
        self._hold(stream[size:])
        return stream[:size]

    def _hold(self, stream: bytes) -> None:
        self._outgoing.clear()
        if stream:
            self._outgoing.append(stream)
        self._outgoing_size = len(stream)

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

    def _reset_peer(self) -> None:
        if not self._unanswered and not self.peer._lost:
            self._network.loop.call_later(self._link.delay(), self.peer._reset)

    def _reset(self) -> None:
        """The peer has aborted, or gets bytes that it does not want any more."""
        self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _end(self, error: OSError) -> None:
        self._drop()
        self._lose(error)

    def _drop(self) -> None:
        self._closing = True
        self._end_to_send = False
        self._outgoing.clear()
        self._outgoing_size = 0
        for timer in (self._arrival, self._patience):
            if timer is not None:
                timer.cancel()
        self._arrival = self._patience = None

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        if self.peer._lost:
            self._network.forget(self)
        self._network.tell("close" if error is None else "reset", self)
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)

    # The end of a host.

    def vanish(self, silent: bool) -> None:
        """The process that this end belonged to has died; with `silent`, so has its stack."""
        was_open = not self._lost
        self.gone = self._closing = self._lost = True
        peer = self.peer
        if silent:
            self._drop()
            peer._unanswered = True
        elif was_open and self._network.random.random() < UNREAD_CHANCE:
            self._drop()
            self._reset_peer()
        elif was_open:
            # What the process had not given to its stack yet dies with it.
            self._hold(b"".join(self._outgoing)[:SOCKET_BUFFER])
            self._end_to_send = True
            self._send()
        if peer._arrival is not None:
            # It would arrive on a loop that runs no more.
            peer._arrival.cancel()
            peer._arrival = None
        peer._send()
        if peer._lost:
            self._network.forget(self)
