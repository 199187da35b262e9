"""What the TCP stacks of two hosts do with a connection, independent of the programs at its ends."""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from zlib import crc32

from kbroker.simulation.network.link import Fabric

Address = tuple[str, int]

# Bytes that both kernels buffer before the writer's own buffer fills.
SOCKET_BUFFER = 128 * 1024
SMALL_SEGMENT = 8
# A stack closes a connection whose bytes are not acknowledged for this long, in seconds.
TCP_TIMEOUT_S = (5.0, 15.0)
# The delay of the next retransmission after a link is restored, in seconds.
RETRANSMIT_S = (0.01, 0.5)
# The probability that a process dies with unread bytes in its socket: its stack then resets the connection.
UNREAD_CHANCE = 0.5


def timed_out() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


class TcpEndpoint:
    """One end of a connection. Holds the bytes written here until `peer` has received them.

    The protocol's callbacks are scheduled on `loop`, the loop of its process; the stack runs on the network's loop.
    `process_dead` means that the process of this end has died. `on_closed` is called when both ends are lost.
    """

    peer: "TcpEndpoint"

    def __init__(
        self,
        fabric: Fabric,
        loop: asyncio.AbstractEventLoop,
        local: Address,
        remote: Address,
        on_closed: Callable[["TcpEndpoint"], None],
    ) -> None:
        self.name = f"{local[0]}:{local[1]}"
        self.host = local[0]
        self.process_dead = False
        self._fabric = fabric
        self._on_closed = on_closed
        self._link = fabric.link(local[0], remote[0])
        self._return_link = fabric.link(remote[0], local[0])
        self._loop = loop
        self._send_queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._eof_queued = False
        self._arrival: asyncio.TimerHandle | None = None
        self._reading = False
        self._closing = False
        self._lost = False
        # Nothing that is sent here arrives, or the other host does not respond.
        self._unreachable = False
        # Set while sent bytes are not acknowledged; closes the connection when it expires.
        self._timeout: asyncio.TimerHandle | None = None
        # A reset waits for a clogged link.
        self._reset_queued = False
        # The connection is reset after this many more bytes written here have arrived.
        self._bytes_until_reset: int | None = None

    # What the transport implements.

    def _receive(self, data: bytes) -> bytes:
        """Pass bytes to the protocol; return those that it did not accept."""
        raise NotImplementedError

    def _receive_eof(self) -> None:
        raise NotImplementedError

    def _on_drained(self) -> None:
        """Called when the peer has received bytes."""
        raise NotImplementedError

    def _notify_lost(self, error: Exception | None) -> None:
        raise NotImplementedError

    # Sending.

    def _transmit(self) -> None:
        """Send what is queued, unless a segment is already on its way."""
        peer = self.peer
        if self._arrival is not None or not (self._send_queue or self._eof_queued):
            return
        if self._unreachable or self._link.cut or self._link.clogged:
            self._wait_for_link()
        elif peer._closing:
            # The peer's process may be dead; its stack still responds.
            self._arrival = self._fabric.loop.call_later(self._link.delay_s(), self._arrive)
        elif peer._reading:
            self._arrival = peer._loop.call_later(self._link.delay_s(), self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        peer, link = self.peer, self._link
        if link.cut or link.clogged:
            self._wait_for_link()
        elif link.rate is not None and link.busy_s():
            # Another connection used the link first.
            self._transmit()
        elif peer._closing:
            self._arrive_at_closed()
        elif not peer._reading:
            return
        elif self._send_queue:
            self._deliver()
        else:
            self._eof_queued = False
            peer._receive_eof()

    def _arrive_at_closed(self) -> None:
        self._eof_queued = False
        if self._send_queue:
            self.peer._send_reset()
            if self._return_link.cut:
                self._wait_for_link()

    def _deliver(self) -> None:
        peer = self.peer
        segment = self._next_segment()
        if self._fabric.trace is not None:
            self._fabric.trace("bytes", self.name, peer.name, len(segment), crc32(segment))
        self._link.occupy(len(segment))
        rejected = peer._receive(segment)
        if rejected:
            self._send_queue.appendleft(rejected)
            self._queued_bytes += len(rejected)
        if self._bytes_until_reset is not None:
            self._reset_after(self._bytes_until_reset - len(segment) + len(rejected))
        if self._return_link.cut:
            # The acknowledgement does not arrive.
            self._wait_for_link()
        self._on_drained()
        self._transmit()

    def _next_segment(self) -> bytes:
        """Remove the next segment from the queue: all of it or a random part."""
        random = self._fabric.random
        stream = b"".join(self._send_queue)
        chance = random.random()
        size = len(stream)
        if self._bytes_until_reset is not None or self._link.rate is not None or self._fabric.reset_chance:
            size = self._limit_segment(size)
        if chance < 0.1:
            size = random.randint(1, min(size, SMALL_SEGMENT))
        elif chance < 0.4:
            size = random.randint(1, size)
        self._replace_queue(stream[size:])
        return stream[:size]

    def _limit_segment(self, size: int) -> int:
        """Return how many of the next `size` bytes the network's faults allow in one segment."""
        random = self._fabric.random
        if self._bytes_until_reset is None and random.random() < self._fabric.reset_chance:
            self.inject_reset(random.randint(1, size))
        for limit in (self._bytes_until_reset, self._link.max_segment()):
            if limit is not None:
                size = min(size, limit)
        return size

    def _replace_queue(self, stream: bytes) -> None:
        self._send_queue.clear()
        if stream:
            self._send_queue.append(stream)
        self._queued_bytes = len(stream)

    # The end of the connection.

    @property
    def is_open(self) -> bool:
        return not self._lost and not self.peer._lost

    def _send_reset(self) -> None:
        if self._unreachable or self.peer._lost or self._link.cut:
            return
        if self._link.clogged:
            self._reset_queued = True
            self._link.waiting[self] = None
        else:
            self._fabric.loop.call_later(self._link.delay_s(), self.peer._receive_reset)

    def _receive_reset(self) -> None:
        self._fail_with(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _fail_with(self, error: OSError) -> None:
        self._drop_queue()
        self._mark_lost(error)

    def _drop_queue(self) -> None:
        self._closing = True
        self._eof_queued = False
        self._send_queue.clear()
        self._queued_bytes = 0
        for timer in (self._arrival, self._timeout):
            if timer is not None:
                timer.cancel()
        self._arrival = self._timeout = None

    def _mark_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        if self.peer._lost:
            self._on_closed(self)
        if self._fabric.trace is not None:
            self._fabric.trace("close" if error is None else "reset", self.name, self.peer.name, 0, 0)
        self._notify_lost(error)

    # Faults of the network.

    def _wait_for_link(self) -> None:
        """Continue when the links work again. The connection times out unless its link is only clogged."""
        if not self._unreachable:
            link = self._link if self._link.cut or self._link.clogged else self._return_link
            link.waiting[self] = None
            if not link.cut:
                return
        if self._timeout is None:
            timeout_s = self._fabric.random.uniform(*TCP_TIMEOUT_S)
            self._timeout = self._fabric.loop.call_later(timeout_s, self._time_out)

    def _time_out(self) -> None:
        self._timeout = None
        self._send_reset()
        self._fail_with(timed_out())

    def on_link_restored(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._reset_queued:
            self._reset_queued = False
            self._send_reset()
        else:
            self._fabric.loop.call_later(self._fabric.random.uniform(*RETRANSMIT_S), self._transmit)

    def inject_reset(self, after: int) -> None:
        """Reset both ends once `after` more bytes written here have arrived."""
        self._fabric.injected["reset"] += 1
        self._reset_after(after)

    def _reset_after(self, size: int) -> None:
        self._bytes_until_reset = size
        if size <= 0:
            self._bytes_until_reset = None
            self._fabric.loop.call_soon(self._receive_reset)
            self._fabric.loop.call_soon(self.peer._receive_reset)

    def blackhole(self) -> None:
        """Drop everything that is sent from here from now on."""
        self._unreachable = True
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._transmit()

    # The end of a host.

    def process_died(self, silent: bool) -> None:
        """Called when the process of this end has died; with `silent` its stack has died, too."""
        was_open = not self._lost
        self.process_dead = self._closing = self._lost = True
        peer = self.peer
        if silent:
            self._drop_queue()
            peer._unreachable = True
        elif was_open and self._fabric.random.random() < UNREAD_CHANCE:
            self._drop_queue()
            self._send_reset()
        elif was_open:
            # Bytes that had not reached the kernel's buffer are lost with the process.
            self._replace_queue(b"".join(self._send_queue)[:SOCKET_BUFFER])
            self._eof_queued = True
            self._transmit()
        if peer._arrival is not None:
            # It is scheduled on the loop of the dead process.
            peer._arrival.cancel()
            peer._arrival = None
        peer._transmit()
        if peer._lost:
            self._on_closed(self)

    def peer_rebooted(self) -> None:
        """Called when the peer's host is up again. It does not know this connection and resets it if bytes arrive."""
        self._unreachable = False
        self.on_link_restored()
