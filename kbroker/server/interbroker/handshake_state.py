"""The state in which a connection of another broker is before it serves requests: the handshake, if need be above TLS.

Until then the peer is a stranger. It may send frames of MAX_HANDSHAKE_BYTES, for HANDSHAKE_TIMEOUT_S, and the oldest of
too many strangers are closed (inter_broker_server.py). Then the connection continues with the InterBrokerConnection.
"""

from __future__ import annotations

from asyncio import TimerHandle
from typing import TYPE_CHECKING, Protocol

from kbroker.interbroker.frame_protocol import FrameProtocol, channel_binding, send_frame
from kbroker.interbroker.handshake import (
    MAX_HANDSHAKE_BYTES,
    NONCE_BYTES,
    HandshakeError,
    Hello,
    ResponderHandshake,
    refusal,
)
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from kbroker.server.interbroker.inter_broker_context import InterBrokerContext

log = EventLogger("kbroker.interbroker")

HANDSHAKE_TIMEOUT_S = 5.0


class StrangerListener(Protocol):
    """The inter-broker server, which limits connections without a handshake."""

    def on_open(self, stranger: HandshakeState) -> None: ...

    def check_hello(self, hello: Hello | None) -> None:
        """Raise HandshakeError if a newer process of the initiator is known."""
        ...

    def on_handshake(self, stranger: HandshakeState, hello: Hello) -> FrameProtocol:
        """Return the protocol with which the connection continues."""
        ...

    def on_close(self, stranger: HandshakeState) -> None: ...


class HandshakeState(FrameProtocol):
    """`peer`: the address of the other side."""

    def __init__(self, server: InterBrokerContext, listener: StrangerListener) -> None:
        super().__init__(server.buffers, MAX_HANDSHAKE_BYTES)
        self.peer = "?"
        self._server = server
        self._listener = listener
        self._handshake: ResponderHandshake
        self._timer: TimerHandle

    def on_open(self) -> None:
        assert self.transport is not None
        peer = self.transport.get_extra_info("peername")
        if peer:
            self.peer = f"{peer[0]}:{peer[1]}"
        nonce = self._server.randbytes(NONCE_BYTES)
        self._handshake = ResponderHandshake(self._server.identity, nonce, channel_binding(self.transport))
        self._timer = self._server.call_later(HANDSHAKE_TIMEOUT_S, self.close, "no handshake in time")
        self._listener.on_open(self)

    def on_frame(self, frame: memoryview, is_shared: bool) -> None:
        assert self.transport is not None
        handshake = self._handshake
        try:
            if handshake.hello is None:
                challenge = handshake.challenge(bytes(frame))
                self._listener.check_hello(handshake.hello)
                send_frame(self.transport, challenge)
                return
            hello = handshake.verify(bytes(frame))
            # The image may have changed meanwhile.
            self._listener.check_hello(hello)
        except HandshakeError as error:
            send_frame(self.transport, refusal(error.reason))
            if error.is_transient:
                # Usual after the restart of a broker, until the other one has the new metadata.
                log.debug("handshake refused", peer=self.peer, reason=error.reason, **error.detail)
                self.close_quietly()
            else:
                self.close(error.reason, **error.detail)
            return
        self._timer.cancel()
        self.continue_with(self._listener.on_handshake(self, hello))

    def on_malformed(self, size: int) -> None:
        self.close("request before the handshake", size=size)

    def close(self, reason: str, **detail: object) -> None:
        """Close the connection and log the reason."""
        if self.transport is not None:
            self._server.errors.report_close(self.peer, None, None, f"inter-broker: {reason}", detail)
            self.close_quietly()

    def close_quietly(self) -> None:
        """Close the connection without a log line."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()
            self.on_lost(None)

    def on_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._listener.on_close(self)
