"""Sends a response from the page cache: its buffers by send(2), its file slices by sendfile(2)."""

from __future__ import annotations

import socket as socket_module
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.storage.log.segment import FileSlice

if TYPE_CHECKING:
    from kbroker.runtime.disk import DirectSocket

# The kernel waits for the next part instead of sending a small packet.
_MORE: int = getattr(socket_module, "MSG_MORE", 0)
# The buffers between two file slices (small partitions) are joined, up to this many bytes.
_JOINED_BYTES = 64 * 1024

Part = Buffer | FileSlice


class SendState(Enum):
    """How far a response was sent. MORE: the limit was reached, or the socket's buffer was full after some bytes, which
    the client may have received by now. MUST_WAIT: the buffer is full. MUST_READ: the next part is not in the page
    cache, or cannot be sent directly."""

    DONE = auto()
    MORE = auto()
    MUST_WAIT = auto()
    MUST_READ = auto()


def send_parts(socket: DirectSocket, parts: deque[Part], limit: int) -> SendState:
    """Send at most about `limit` bytes of `parts`, and remove what was sent."""
    while parts:
        if limit <= 0:
            return SendState.MORE
        part = parts[0]
        if isinstance(part, FileSlice):
            size = min(len(part), limit)
            sent = part.send_nowait(socket, size)
            if sent is None:
                return SendState.MUST_READ
            limit -= sent
            if not part:
                parts.popleft()
            elif sent < size:
                return SendState.MORE if sent else SendState.MUST_WAIT
            continue
        if len(parts) > 1 and not isinstance(parts[1], FileSlice):
            part = _take_buffers(parts)
            parts.appendleft(part)
        try:
            sent = socket.send(part, _MORE if len(parts) > 1 else 0)
        except BlockingIOError:
            return SendState.MUST_WAIT
        except OSError:
            # The transport will get the same error, and closes the connection.
            return SendState.MUST_READ
        limit -= sent
        if sent < len(part):
            parts[0] = memoryview(part)[sent:]
            return SendState.MUST_WAIT
        parts.popleft()
    return SendState.DONE


def _take_buffers(parts: deque[Part]) -> bytes:
    """Remove the buffers before the next file slice, up to about _JOINED_BYTES, and return them joined."""
    buffers: list[Buffer] = []
    size = 0
    while parts and size < _JOINED_BYTES and not isinstance(parts[0], FileSlice):
        buffer = parts.popleft()
        assert not isinstance(buffer, FileSlice)
        buffers.append(buffer)
        size += len(buffer)
    return b"".join(buffers)
