"""What the two hosts' stacks do with a connection, whatever the programs at its ends do."""

import asyncio
import errno
import os
from collections import deque
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from kbroker.simulation.network.network import SimNetwork

Address = tuple[str, int]

# What two kernels hold of a stream before the writer's own buffer fills.
SOCKET_BUFFER = 128 * 1024
SMALL_PIECE = 8
# How long a stack sends the same bytes again to one that does not answer before it gives the connection up, and how
# long until it does so next when there is a way again, in seconds.
STACK_TIMEOUT_S = (5.0, 15.0)
SEND_AGAIN_S = (0.01, 0.5)
# The chance that a process has not read all that has arrived when it dies: its stack resets the connection then.
UNREAD_CHANCE = 0.5


def timed_out() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


class StackEnd:
    """One end. Holds what was written here until `peer` has taken it.

    What the program hears is scheduled on its own loop; the stack lives on the network's. `gone`: the program's process
    has died, so nothing more is done for it.
    """

    peer: "StackEnd"

    def __init__(self, network: "SimNetwork", loop: asyncio.AbstractEventLoop, local: Address, remote: Address) -> None:
        self.name = f"{local[0]}:{local[1]}"
        self.host = local[0]
        self.gone = False
        self._network = network
        self._link = network.link(local[0], remote[0])
        self._back = network.link(remote[0], local[0])
        self._loop = loop
        self._outgoing: deque[bytes] = deque()
        self._outgoing_size = 0
        self._end_to_send = False
        self._arrival: asyncio.TimerHandle | None = None
        self._reading = False
        self._closing = False
        self._lost = False
        # Nothing that is sent here arrives any more, or what is at the other end does not answer.
        self._unanswered = False
        # Bytes wait for their acknowledgement: the stack sends them again until this is over.
        self._patience: asyncio.TimerHandle | None = None
        self._reset_to_send = False
        # After how many more bytes of what is written here the connection is reset.
        self._fuse: int | None = None

    # What the program's half of it must do.

    def _receive(self, piece: bytes) -> bytes:
        """Give bytes to the program; gives back those that it did not take."""
        raise NotImplementedError

    def _receive_end(self) -> None:
        raise NotImplementedError

    def _drained(self) -> None:
        """The peer has taken something."""
        raise NotImplementedError

    def _report_lost(self, error: Exception | None) -> None:
        raise NotImplementedError

    # Sending.

    def _send(self) -> None:
        """Something waits to arrive at the peer: let it travel, unless something is on its way already."""
        peer = self.peer
        if self._arrival is not None or not (self._outgoing or self._end_to_send):
            return
        if self._unanswered or self._link.cut or self._link.clogged:
            self._wait()
        elif peer._closing:
            # Its stack answers for it.
            self._arrival = self._network.loop.call_later(self._link.delay(), self._arrive)
        elif peer._reading:
            self._arrival = peer._loop.call_later(self._link.delay(), self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        peer, link = self.peer, self._link
        if link.cut or link.clogged:
            self._wait()
        elif link.rate is not None and link.busy_s():
            # Something else was faster.
            self._send()
        elif peer._closing:
            self._arrive_unwanted()
        elif not peer._reading:
            return
        elif self._outgoing:
            self._deliver()
        else:
            self._end_to_send = False
            peer._receive_end()

    def _arrive_unwanted(self) -> None:
        """Nobody reads there any more."""
        self._end_to_send = False
        if self._outgoing:
            self.peer._reset_peer()
            if self._back.cut:
                self._wait()

    def _deliver(self) -> None:
        peer = self.peer
        piece = self._take_piece()
        if self._network.trace is not None:
            self._network.trace("bytes", self.name, peer.name, len(piece), crc32(piece))
        self._link.carried(len(piece))
        left = peer._receive(piece)
        if left:
            self._outgoing.appendleft(left)
            self._outgoing_size += len(left)
        if self._fuse is not None:
            self.reset_after(self._fuse - len(piece) + len(left))
        if self._back.cut:
            # No acknowledgement comes.
            self._wait()
        self._drained()
        self._send()

    def _take_piece(self) -> bytes:
        """All that waits, or as much of it as the seed says."""
        random = self._network.random
        stream = b"".join(self._outgoing)
        chance = random.random()
        size = len(stream)
        if self._fuse is not None or self._link.rate is not None or self._network.faults.reset_chance:
            size = self._limit(size)
        if chance < 0.1:
            size = random.randint(1, min(size, SMALL_PIECE))
        elif chance < 0.4:
            size = random.randint(1, size)
        self._hold(stream[size:])
        return stream[:size]

    def _limit(self, size: int) -> int:
        """How much of the next piece the network's faults let through."""
        faults = self._network.faults
        if self._fuse is None and self._network.random.random() < faults.reset_chance:
            faults.reset(self, self._network.random.randint(1, size))
        for most in (self._fuse, self._link.most_at_once()):
            if most is not None:
                size = min(size, most)
        return size

    def _hold(self, stream: bytes) -> None:
        self._outgoing.clear()
        if stream:
            self._outgoing.append(stream)
        self._outgoing_size = len(stream)

    # The end of the connection.

    @property
    def is_open(self) -> bool:
        return not self._lost and not self.peer._lost

    def _reset_peer(self) -> None:
        """Something that has no place in the connection has come, or it was aborted: its stack tells the peer."""
        if self._unanswered or self.peer._lost or self._link.cut:
            return
        if self._link.clogged:
            self._reset_to_send = True
            self._link.waiting[self] = None
        else:
            self._network.loop.call_later(self._link.delay(), self.peer._reset)

    def _reset(self) -> None:
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
        self._report_lost(error)

    # What a network does to it.

    def _wait(self) -> None:
        """Until the links are whole; not for ever, unless this one is only clogged."""
        if not self._unanswered:
            link = self._link if self._link.cut or self._link.clogged else self._back
            link.waiting[self] = None
            if not link.cut:
                return
        if self._patience is None:
            timeout = self._network.random.uniform(*STACK_TIMEOUT_S)
            self._patience = self._network.loop.call_later(timeout, self._give_up)

    def _give_up(self) -> None:
        self._patience = None
        self._reset_peer()
        self._end(timed_out())

    def may_send_again(self) -> None:
        """The links are whole: the stack does not find out at once."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._reset_to_send:
            self._reset_to_send = False
            self._reset_peer()
        else:
            self._network.loop.call_later(self._network.random.uniform(*SEND_AGAIN_S), self._send)

    def reset_after(self, size: int) -> None:
        """Something between the hosts resets both ends when so many more bytes from here have arrived."""
        self._fuse = size
        if size <= 0:
            self._fuse = None
            self._network.loop.call_soon(self._reset)
            self._network.loop.call_soon(self.peer._reset)

    def forgotten(self) -> None:
        """Nothing that is sent from here arrives any more."""
        self._unanswered = True
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._send()

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

    def peer_is_back(self) -> None:
        """Its host is up again and knows nothing of this connection; it says so when something arrives there."""
        self._unanswered = False
        self.may_send_again()
