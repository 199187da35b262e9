"""Splits the bytes of a connection between brokers into frames.

All connections of one process receive into one shared buffer, where small frames are handled in place. A frame that is
incomplete there gets a buffer of its own size, so that the rest of a large Fetch response is received where it is read.
Such buffers are reused as soon as nothing refers to them.
"""

from __future__ import annotations

import asyncio
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import cast

RECEIVE_BYTES = 64 * 1024
_LENGTH = Struct(">i")
# A buffer is a multiple of this size, so that frames of similar sizes share it.
_STEP_BYTES = 256 * 1024
# The most bytes and the most buffers that are kept. Two Fetch responses of 2 MiB are usual: from two leaders, with
# 1 MiB for each of two partitions. Larger ones arrive while this broker catches up; their buffers are not kept.
MAX_KEPT_BYTES = 8 * 1024 * 1024
MAX_KEPT = 4


def send_frame(transport: asyncio.WriteTransport, payload: bytes) -> None:
    transport.write(_LENGTH.pack(len(payload)) + payload)


def channel_binding(transport: asyncio.BaseTransport) -> bytes:
    """Return bytes that are the same at both ends of a TLS connection, and of no other; none without TLS."""
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return b""
    binding: bytes | None = tls.get_channel_binding("tls-unique")
    assert binding
    return binding


class PeerFrameBuffers:
    """The shared receive buffer, and reused buffers for large frames."""

    def __init__(self) -> None:
        self.receive_view = memoryview(bytearray(RECEIVE_BYTES))
        # The smallest is the first.
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return a buffer of `size` bytes. It is reused when all views of it are gone."""
        # The largest frame of a stranger, with its length: one of these is kept for each connection.
        if size <= RECEIVE_BYTES + _LENGTH.size:
            return memoryview(bytearray(size))
        for kept in self._kept:
            if len(kept) >= size and _is_free(kept):
                return memoryview(kept)[:size]
        rounded = -(-size // _STEP_BYTES) * _STEP_BYTES
        if rounded > MAX_KEPT_BYTES // 2:
            # The kernel commits its pages when bytes arrive in them.
            return memoryview(mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS))
        buffer = bytearray(rounded)
        self._keep(buffer)
        return memoryview(buffer)[:size]

    def _keep(self, buffer: bytearray) -> None:
        """Keep a buffer, in place of smaller ones if there are too many."""
        kept = sorted((*self._kept, buffer), key=len)
        while len(kept) > MAX_KEPT or sum(map(len, kept)) > MAX_KEPT_BYTES:
            del kept[0]
        self._kept = kept


def _is_free(buffer: bytearray) -> bool:
    """Return whether no view of the buffer exists: Python does not change the size of one that has views."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True


class FrameProtocol(asyncio.BufferedProtocol):
    """A protocol whose subclass gets frames. `max_frame_bytes` may change with each frame.

    `transport` is None before the connection is made and after it is closed.
    """

    def __init__(self, buffers: PeerFrameBuffers, max_frame_bytes: int) -> None:
        self.transport: asyncio.Transport | None = None
        self.max_frame_bytes = max_frame_bytes
        self._buffers = buffers
        # The buffer of an incomplete frame, with its length, or of an incomplete length.
        self._partial: memoryview | None = None
        self._filled = 0
        self._successor: FrameProtocol | None = None

    # For the subclass.

    def on_open(self) -> None: ...

    def on_frame(self, frame: memoryview, is_shared: bool) -> None:
        """Handle a frame. `is_shared`: it is in the receive buffer, and must be copied if it is kept."""
        raise NotImplementedError

    def on_malformed(self, size: int) -> None:
        """Called when the length of a frame is out of bounds. The subclass closes the connection."""
        raise NotImplementedError

    def on_lost(self, error: Exception | None) -> None: ...

    def pass_on(self, view: memoryview) -> None:
        """Called with the bytes after the frame with which the connection has ended, or continues with another one."""
        if self._successor is not None:
            self._successor._split(view)

    def continue_with(self, protocol: FrameProtocol) -> None:
        """Continue the connection with another protocol, from the bytes after the frame that is being handled."""
        transport, self.transport = self.transport, None
        assert transport is not None
        self._successor = protocol
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.on_open()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = self._partial = None
        self.on_lost(exc)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        partial = self._partial
        return self._buffers.receive_view if partial is None else partial[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        partial = self._partial
        if partial is None:
            self._split(self._buffers.receive_view[:nbytes])
            return
        self._filled += nbytes
        if self._filled < len(partial):
            return
        length: int = _LENGTH.unpack_from(partial)[0]
        if len(partial) == 4:
            if 0 < length <= self.max_frame_bytes:
                self._keep(partial, 4 + length)
            else:
                self.on_malformed(length)
            return
        self._partial = None
        self.on_frame(partial[4:], False)

    def _split(self, view: memoryview) -> None:
        """Pass complete frames to `on_frame`, and keep the rest."""
        pos, end = 0, len(view)
        while end - pos >= 4:
            length: int = _LENGTH.unpack_from(view, pos)[0]
            if not 0 < length <= self.max_frame_bytes:
                self.on_malformed(length)
                return
            frame_end = pos + 4 + length
            if frame_end > end:
                self._keep(view[pos:], 4 + length)
                return
            self.on_frame(view[pos + 4 : frame_end], True)
            if self.transport is None:
                self.pass_on(view[frame_end:])
                return
            pos = frame_end
        if pos < end:
            self._keep(view[pos:], 4)

    def _keep(self, start: memoryview, size: int) -> None:
        buffer = self._buffers.take(size)
        self._filled = len(start)
        buffer[: self._filled] = start
        self._partial = buffer
