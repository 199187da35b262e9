"""Connections of a listener with SASL: before the login, and after it.

Before it, only ApiVersions, SaslHandshake and SaslAuthenticate are handled, in frames of at most
sasl.server.max.receive.size, and for LOGIN_TIMEOUT_S. Frames of more than 64 KiB, with large tokens, share a bound, so
that strangers cannot multiply it. Then the transport continues with an AuthenticatedConnection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from kbroker.api.context import UNKNOWN_SOFTWARE, Identity, RequestContext
from kbroker.api.dispatch import UnsupportedRequest
from kbroker.common import Principal
from kbroker.interbroker.frame_protocol import RECEIVE_BYTES, FrameProtocol, PeerFrameBuffers
from kbroker.server.connection import Connection, ConnectionListener
from kbroker.server.error_reporter import ErrorReporter, api_name, closing_reason, foreign_protocol
from protocol.apis import ApiKey
from protocol.framing import ParsedRequestHeader, decode_request_header, encode_response_header

if TYPE_CHECKING:
    from kbroker.authorization.authorizer import Access
    from kbroker.server.authentication.sasl_session import SaslSession
    from kbroker.server.server_context import ServerContext, SharedContext
    from protocol.messages.k17_sasl import SaslAuthenticateResponse

LOGIN_TIMEOUT_S = 10.0
# The bytes of all frames of more than RECEIVE_BYTES before the logins of a listener, from their announcement on.
LARGE_FRAME_BYTES = 4 * 1024 * 1024
_LENGTH = Struct(">i")
_SASL_APIS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


class TlsListener(Protocol):
    """A listener with TLS, which counts a connection from its beginning, whatever protocol object it has.

    `encrypted_view`: for bytes of TLS connections before they are decrypted.
    """

    encrypted_view: memoryview
    handshake_steps: asyncio.Semaphore

    @property
    def name(self) -> str: ...

    def on_open(self, connection: Any) -> None: ...

    def principal_of(self, certificate: bytes) -> Principal | None:
        """Return the principal of a client certificate; None if no rule applies."""
        ...

    def on_close(self, connection: Any) -> None: ...


class LoginListener(TlsListener, ConnectionListener, Protocol):
    """A listener with SASL. `login_buffers`: of all logins."""

    login_buffers: LoginBuffers

    def replace(self, former: Stranger | Connection, connection: Stranger | Connection) -> None:
        """Called when another protocol object continues a connection."""
        ...


class Replacement:
    """The listener of a protocol that continues an accepted connection, which is counted once."""

    def __init__(self, listener: LoginListener, former: Stranger, principal: Principal) -> None:
        self.identity = Identity(listener.name, principal)
        self._listener, self._former = listener, former

    def on_open(self, connection: Connection) -> None:
        self._listener.replace(self._former, connection)

    def on_close(self, connection: Connection) -> None:
        self._listener.on_close(connection)


class LoginBuffers(PeerFrameBuffers):
    """The buffers of all logins of a listener. `large_frame_bytes`: of frames of more than RECEIVE_BYTES."""

    def __init__(self) -> None:
        super().__init__()
        self.large_frame_bytes = 0

    def take(self, size: int) -> memoryview:
        # Not one of the reused ones, which are larger than the frame.
        return memoryview(bytearray(size))


class Stranger:
    """What the listener counts and limits of a connection whose client is not known yet."""

    is_waiting = True
    last_active_ns = 0
    identity: Identity
    sasl: SaslSession | None = None
    transport: asyncio.Transport | None
    timer: asyncio.TimerHandle | None = None

    def __init__(self, server: SharedContext, listener: TlsListener) -> None:
        self.host = self.peer = "?"
        self.server, self.listener, self.errors = server, listener, server.errors

    @property
    def descriptor(self) -> int:
        socket = self.transport.get_extra_info("socket") if self.transport is not None else None
        return -1 if socket is None else socket.fileno()

    def begin(self, transport: asyncio.Transport, timeout_reason: str) -> None:
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.peer = peer[0], f"{peer[0]}:{peer[1]}"
        self.timer = self.server.call_later(LOGIN_TIMEOUT_S, self.close, timeout_reason)

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None:
        """Close the connection and log the reason."""
        if self.transport is not None:
            detail["listener"] = self.listener.name
            self.errors.report_close(self.peer, None, context, reason, detail)
            record_failed_login(self.errors, self.host, reason, detail)
            self.close_quietly()

    def close_quietly(self) -> None:
        if self.transport is not None:
            self.transport.close()
            self.transport = None
            self.end()

    def pause_writing(self) -> None:
        """Called if the connection exceeds max.connection.creation.rate. It is read only after a delay."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.transport is not None:
            self.transport.resume_reading()


class SaslConnection(Stranger, FrameProtocol):
    """A connection before its login. It is the connection of its requests (RequestConnection)."""

    server: ServerContext
    listener: LoginListener

    def __init__(
        self, server: ServerContext, listener: LoginListener, session: SaslSession, former: Stranger | None
    ) -> None:
        """`former`: the TLS connection that this one continues."""
        Stranger.__init__(self, server, listener)
        FrameProtocol.__init__(self, listener.login_buffers, session.max_receive_bytes)
        self.identity = listener.identity
        self.client_software = UNKNOWN_SOFTWARE
        self.access: Access | None = None
        self.producer_since: int | None = None
        self.sasl = session
        self._session = session
        self._former = former
        self._has_versions = False
        # Tokens without request headers follow SaslHandshake version 0.
        self._has_raw_tokens = False
        # A token is being verified in a thread.
        self._is_waiting_for_thread = False
        self._large_frame_bytes = 0
        self._client: Connection | None = None

    def _keep(self, start: memoryview, size: int) -> None:
        if size > RECEIVE_BYTES + _LENGTH.size:
            buffers = self.listener.login_buffers
            if buffers.large_frame_bytes + size > LARGE_FRAME_BYTES:
                self.close("too many large frames before their logins", size=size)
                return
            self._large_frame_bytes += size
            buffers.large_frame_bytes += size
        super()._keep(start, size)

    def _free_large_frame(self) -> None:
        self.listener.login_buffers.large_frame_bytes -= self._large_frame_bytes
        self._large_frame_bytes = 0

    def end(self) -> None:
        super().end()
        self._free_large_frame()

    def hold(self, size: int) -> None: ...

    def on_open(self) -> None:
        assert self.transport is not None
        self.begin(self.transport, "no login in time")
        if self._former is None:
            self.listener.on_open(self)
        else:
            self.listener.replace(self._former, self)

    def on_lost(self, error: Exception | None) -> None:
        if self._session.rejection is not None:
            self.errors.report_close(self.peer, None, None, "authentication failed", self._failure_detail())
        self.end()
        self.listener.on_close(self)

    def on_malformed(self, size: int) -> None:
        foreign = foreign_protocol(size)
        reason = "frame too large before the login" if size > 0 else "malformed frame"
        self.close(reason if foreign is None else f"{foreign} on a listener without TLS", size=size)

    def on_frame(self, frame: memoryview, is_shared: bool) -> None:
        if self._session.failure is not None:
            return
        if self._is_waiting_for_thread:
            self.close("request during a login")
            return
        try:
            if self._has_raw_tokens:
                self._authenticate_raw(bytes(frame))
            else:
                self._serve(frame, decode_request_header(frame))
        except UnsupportedRequest as error:
            self.close(error.reason, api=api_name(error.api_key), version=error.version)
        except Exception as error:
            self._on_error(error)

    def _on_error(self, error: Exception) -> None:
        reason = closing_reason(error)
        if reason is None:
            self.errors.report_failure(self.peer, None, None, error)
        self.close("internal error" if reason is None else reason.text)

    def _serve(self, frame: memoryview, header: ParsedRequestHeader) -> None:
        key, session, server = header.api_key, self._session, self.server
        is_expected = key in _SASL_APIS if session.expects_token else (
            key == ApiKey.SASL_HANDSHAKE or (key == ApiKey.API_VERSIONS and not self._has_versions)
        )  # fmt: skip
        if not is_expected:
            self.close("request before the login", api=api_name(key))
            return
        handler = server.dispatch[key, header.version]
        handler.stats.requests += 1
        context = RequestContext(
            self, handler, header.version, header.correlation_id, header.client_id, server.mono_ns()
        )
        request = handler.decode(frame, header.body_pos, header.version)
        response = handler.handle(server.services, context, request)
        if isinstance(response, Awaitable):
            self._wait_for(response, partial(self._send, context, request))
        else:
            self._send(context, request, response)

    def _wait_for(self, response: Awaitable[Any], respond: Callable[[Any], None]) -> None:
        """Read nothing until a token has been verified."""
        assert self.transport is not None
        self._is_waiting_for_thread = True
        self.transport.pause_reading()
        self.server.spawn(self._respond_later(response, respond))

    async def _respond_later(self, response: Awaitable[Any], respond: Callable[[Any], None]) -> None:
        try:
            complete = await response
            self._is_waiting_for_thread = False
            if self.transport is None:
                return
            if self._partial is not None:
                self.close("request during a login")
                return
            self.transport.resume_reading()
            respond(complete)
        except Exception as error:
            self._on_error(error)

    def _send(self, context: RequestContext, request: Any, response: Any) -> None:
        key, version, session, handler = context.api_key, context.version, self._session, context.handler
        has_errors = handler.report_errors(context, request, response)
        body = cast(bytes, handler.encode(response, version))
        payload = encode_response_header(key, version, context.correlation_id) + body
        if key == ApiKey.API_VERSIONS:
            self._has_versions = not has_errors
        elif key == ApiKey.SASL_HANDSHAKE:
            self._has_raw_tokens = version == 0
            if has_errors and session.failure is None:
                session.fail("SaslHandshake while a login is in progress")
        self._respond(payload)

    def _authenticate_raw(self, token: bytes) -> None:
        response = self._session.authenticate(token, self.server.mono_ns() // 1_000_000)
        if isinstance(response, Awaitable):
            self._wait_for(response, self._send_raw)
        else:
            self._send_raw(response)

    def _send_raw(self, response: SaslAuthenticateResponse) -> None:
        # There is no form for an error: the connection is closed.
        self._respond(b"" if response.error_code else response.auth_bytes)

    def _respond(self, payload: bytes) -> None:
        self._free_large_frame()
        session = self._session
        if session.failure is not None:
            if self.transport is not None:
                self.transport.pause_reading()
            delay_s = session.failure_delay_ms / 1000
            self.server.call_later(delay_s, self._fail, b"" if self._has_raw_tokens and session.mechanism else payload)
        elif self.transport is not None:
            self.transport.write(_LENGTH.pack(len(payload)) + payload)
            if session.principal is not None:
                self._log_in(session.principal)

    def _fail(self, payload: bytes) -> None:
        if self.transport is not None and payload:
            self.transport.write(_LENGTH.pack(len(payload)) + payload)
        self.close("authentication failed", None, **self._failure_detail())

    def _failure_detail(self) -> dict[str, object]:
        session = self._session
        return {"mechanism": session.mechanism or None, "error": session.failure or session.rejection}

    def _log_in(self, principal: Principal) -> None:
        """Continue as an AuthenticatedConnection."""
        transport, self.transport = self.transport, None
        assert transport is not None
        self.end()
        client = AuthenticatedConnection(self.server, Replacement(self.listener, self, principal), self._session)
        client.client_software = self.client_software
        self._client = client
        transport.set_protocol(client)
        client.connection_made(transport)

    def pass_on(self, view: memoryview) -> None:
        if self._client is not None:
            feed(self._client, bytes(view))


def record_failed_login(errors: ErrorReporter, host: str, reason: str, detail: dict[str, object]) -> None:
    """Record in the audit log that the broker closes a connection whose client it does not know."""
    if errors.audit is not None:
        errors.audit.record("login failed", host=host, reason=reason, **detail)


def feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give bytes that have been received already to the protocol that continues the connection."""
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


class AuthenticatedConnection(Connection):
    """A connection after its login. With connections.max.reauth.ms it serves only the next login when that expires."""

    __slots__ = ("sasl",)

    def __init__(self, server: ServerContext, listener: ConnectionListener, session: SaslSession) -> None:
        super().__init__(server, listener)
        self.sasl: SaslSession = session
        session.on_failure = self._close_later

    def _serve_request(self, frame: memoryview) -> None:
        session = self.sasl
        if session.expires_ms is None:
            super()._serve_request(frame)
            return
        api_key = int.from_bytes(frame[:2])
        if session.failure is not None:
            return
        if session.expects_token and api_key != ApiKey.SASL_AUTHENTICATE:
            self.close("request during a login", api=api_name(api_key))
        elif api_key not in _SASL_APIS and self.last_active_ns // 1_000_000 >= session.expires_ms:
            self.close("the login has expired", api=api_name(api_key), principal=str(session.principal))
        elif api_key == ApiKey.SASL_HANDSHAKE and not any(frame[2:4]):
            self.close("SaslHandshake version 0 in a later login")
        else:
            super()._serve_request(frame)

    def _close_later(self) -> None:
        self._server.call_later(self.sasl.failure_delay_ms / 1000, self._close_failed)

    def _close_failed(self) -> None:
        reason, principal, error = "authentication failed", str(self.sasl.principal), self.sasl.failure
        record_failed_login(self._server.errors, self.host, reason, {"principal": principal, "error": error})
        self.close(reason, principal=principal, error=error)
