"""Connections of a listener with TLS: the handshake, and a transport that encrypts for the protocol object above it.

Each step of a handshake runs in a thread, where OpenSSL does not hold Python's lock; a few at a time. After it, the
event loop decrypts into the receive buffer of the connection above, many TLS records at once. asyncio's own TLS keeps
256 KiB for each connection, hides it from the listener's limits during the handshake, and takes more processor time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from kbroker.common import Buffer, Principal
from kbroker.server.authentication.sasl_connection import Stranger, TlsListener
from kbroker.server.error_reporter import foreign_protocol

if TYPE_CHECKING:
    from kbroker.server.server_context import SharedContext

# The bytes of a handshake, with the certificates of the client.
MAX_HANDSHAKE_BYTES = 128 * 1024
_HANDSHAKE_RECORD = 0x16


class TlsTransport(asyncio.Transport):
    """The transport of the protocol object above TLS. `reads`: false while that does not want any bytes."""

    def __init__(
        self, raw: asyncio.Transport, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO, owner: TlsConnection
    ) -> None:
        super().__init__()
        self.reads = True
        self._raw, self._tls, self._outgoing, self._owner = raw, tls, outgoing, owner

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._owner.protocol = cast(asyncio.BufferedProtocol, protocol)

    def write(self, data: Buffer) -> None:
        if not self._raw.is_closing():
            self._encrypt(data)
            self.flush()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        # One TLS record for several small buffers.
        self.write(b"".join(list_of_data))

    def _encrypt(self, data: Buffer) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]
        except ssl.SSLError:
            self._raw.abort()

    def flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self.reads = False
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self.reads and not self._raw.is_closing():
            self.reads = True
            self._raw.resume_reading()
            # What was received before may not arrive again.
            self._owner.read_soon()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def close(self) -> None:
        if not self._raw.is_closing():
            with suppress(ssl.SSLError):
                # close_notify is written; that of the client may follow.
                self._tls.unwrap()
            self.flush()
            self._raw.close()

    def abort(self) -> None:
        self._raw.abort()


class TlsConnection(Stranger, asyncio.BufferedProtocol):
    """The protocol object of an accepted socket. `protocol`: the one above TLS, after the handshake."""

    def __init__(
        self,
        server: SharedContext,
        listener: TlsListener,
        context: ssl.SSLContext,
        open_protocol: Callable[[Stranger, Principal | None], asyncio.BufferedProtocol],
    ) -> None:
        """`open_protocol` returns the protocol object above TLS, for the principal of the client's certificate."""
        super().__init__(server, listener)
        self.transport: asyncio.Transport | None = None
        self.protocol: asyncio.BufferedProtocol | None = None
        self._open_protocol = open_protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._upper: TlsTransport
        self._received_bytes = 0
        self._is_lost = False
        # Whether a thread makes a step of the handshake. OpenSSL must not read while bytes are added.
        self._is_in_step = False
        self._read_scheduled = False

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._upper = TlsTransport(self.transport, self._tls, self._outgoing, self)
        self.begin(self.transport, "no TLS handshake in time")
        self.listener.on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self._is_lost = None, True
        self.end()
        if self.protocol is None:
            self.listener.on_close(self)
        else:
            self.protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.listener.encrypted_view

    def buffer_updated(self, nbytes: int) -> None:
        view = self.listener.encrypted_view[:nbytes]
        if self.protocol is not None:
            self._incoming.write(view)
            self._read()
            return
        if not self._received_bytes and view[0] != _HANDSHAKE_RECORD:
            self.close(f"{foreign_protocol(int.from_bytes(view[:4])) or 'a client without TLS'} on a listener with TLS")
            return
        self._received_bytes += nbytes
        if self._received_bytes > MAX_HANDSHAKE_BYTES:
            self.close("TLS handshake too large")
        elif self.transport is not None:
            self._incoming.write(view)
            self._is_in_step = True
            self.transport.pause_reading()
            self.server.spawn(self._handshake())

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.protocol is None:
            Stranger.pause_writing(self)
        else:
            self.protocol.pause_writing()

    def resume_writing(self) -> None:
        if self.protocol is None:
            if not self._is_in_step:
                Stranger.resume_writing(self)
        else:
            self.protocol.resume_writing()

    # The handshake.

    async def _handshake(self) -> None:
        """Make the step for which the bytes have arrived."""
        error = None
        async with self.listener.handshake_steps:
            if self.transport is None:
                return
            try:
                await self.server.offload(self._tls.do_handshake)
                is_done = True
            except ssl.SSLWantReadError:
                is_done = False
            except (ssl.SSLError, OSError) as failure:
                is_done, error = False, failure
        transport, self._is_in_step = self.transport, False
        if transport is None:
            return
        # Also an alert that says why it has failed.
        self._upper.flush()
        if error is not None:
            self.close("TLS handshake failed", error=getattr(error, "reason", None) or str(error))
            return
        if is_done:
            self._open()
        if self._upper.reads and not transport.is_closing():
            transport.resume_reading()

    def _open(self) -> None:
        self.end()
        certificate = self._tls.getpeercert(binary_form=True)
        principal = None
        if certificate is not None:
            principal = self.listener.principal_of(certificate)
            if principal is None:
                self.close("no rule of ssl.principal.mapping.rules applies to the client's certificate")
                return
        self.transport, protocol = None, self._open_protocol(self, principal)
        self.protocol = protocol
        protocol.connection_made(self._upper)
        self._read()

    # After the handshake.

    def read_soon(self) -> None:
        if not self._read_scheduled and (self._incoming.pending or self._tls.pending()):
            self._read_scheduled = True
            self.server.call_soon(self._read_scheduled_bytes)

    def _read_scheduled_bytes(self) -> None:
        self._read_scheduled = False
        if not self._is_lost:
            self._read()

    def _read(self) -> None:
        """Decrypt what has arrived, as long as the protocol above reads."""
        upper, tls = self._upper, self._tls
        is_open, has_ended = True, False
        while is_open and upper.reads and not upper.is_closing():
            protocol = self.protocol
            assert protocol is not None
            buffer = memoryview(protocol.get_buffer(-1))
            size, filled = len(buffer), 0
            try:
                while filled < size:
                    # With a buffer, it returns the number of bytes.
                    count = cast(int, tls.read(size - filled, cast(bytearray, buffer[filled:])))
                    if not count:
                        is_open, has_ended = False, True
                        break
                    filled += count
            except ssl.SSLWantReadError:
                is_open = False
            except ssl.SSLError:
                upper.abort()
                return
            if filled:
                protocol.buffer_updated(filled)
        if has_ended:
            upper.close()
        else:
            # A response of TLS itself, such as a new key.
            upper.flush()
