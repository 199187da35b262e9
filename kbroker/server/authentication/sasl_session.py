"""The SASL logins of one connection, without I/O: the first, and those that follow before it expires (KIP-368).

    START --SaslHandshake--> TOKENS --SaslAuthenticate, once or twice--> DONE --SaslHandshake--> TOKENS ...

Everything else is FAILED, which is final: the connection is closed. Errors and their messages are Kafka's. A login ends
when the credential that it has proved is deleted or changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from kbroker.common import Principal
from kbroker.config.broker.security import OAUTHBEARER, PLAIN
from kbroker.server.authentication.exchanges import (
    AuthenticationError,
    FindCredential,
    PlainExchange,
    RandomBytes,
    ScramExchange,
)
from protocol.errors import ErrorCode
from protocol.messages.k17_sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from protocol.scram import MECHANISMS

if TYPE_CHECKING:
    from kbroker.config.broker.security import SaslSettings
    from kbroker.server.authentication.token_keys import OAuthBearerExchange, TokenKeys

# Kafka's: a client must not keep the broker busy with logins.
MIN_REAUTHENTICATION_INTERVAL_MS = 1000


class _State(Enum):
    START = auto()
    TOKENS = auto()
    DONE = auto()
    FAILED = auto()


class SaslSession:
    """`principal`: None before the first login. `expires_ms`: when it ends (monotonic), None for never.

    `failure`: why the connection must be closed, None while it need not. `on_failure`: called then.
    """

    def __init__(
        self,
        get_settings: Callable[[], SaslSettings],
        find: FindCredential,
        randbytes: RandomBytes,
        salt_key: bytes,
        token_keys: TokenKeys | None = None,
    ) -> None:
        """`get_settings`: returns those of now. `token_keys`: None without OAUTHBEARER."""
        self.principal: Principal | None = None
        self.expires_ms: int | None = None
        self.failure: str | None = None
        self.mechanism = ""
        self.on_failure: Callable[[], None] | None = None
        self._get_settings, self._token_keys = get_settings, token_keys
        self._find, self._randbytes, self._salt_key = find, randbytes, salt_key
        self._state = _State.START
        self._exchange: PlainExchange | ScramExchange | OAuthBearerExchange | None = None
        # That of the last login.
        self._completed: PlainExchange | ScramExchange | OAuthBearerExchange | None = None
        self._last_handshake_ms: int | None = None

    @property
    def max_receive_bytes(self) -> int:
        return self._get_settings().max_receive_bytes

    @property
    def failure_delay_ms(self) -> int:
        return self._get_settings().failure_delay_ms

    @property
    def expects_token(self) -> bool:
        return self._state is _State.TOKENS

    def may_handshake(self, now_ms: int) -> bool:
        """Return whether a login may begin now: the first, or another one if the former expires."""
        if self._state is not _State.DONE:
            return self._state is _State.START
        last = self._last_handshake_ms
        return self.expires_ms is not None and (last is None or now_ms - last >= MIN_REAUTHENTICATION_INTERVAL_MS)

    def handshake(self, mechanism: str, now_ms: int) -> SaslHandshakeResponse:
        """Begin a login. The caller has called `may_handshake`."""
        names = list(self._get_settings().mechanisms)
        is_again = self.principal is not None
        if mechanism not in names:
            self.fail(f"unsupported SASL mechanism {mechanism[:40]}")
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=names)
        if is_again:
            self._last_handshake_ms = now_ms
            if mechanism != self.mechanism:
                self.fail(f"SASL mechanism {mechanism} is not that of the first login, {self.mechanism}")
                return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=names)
        self.mechanism, self._state = mechanism, _State.TOKENS
        action = "re-authentication" if is_again else "authentication"
        if mechanism == PLAIN:
            self._exchange = PlainExchange(self._get_settings)
        elif mechanism == OAUTHBEARER:
            # Imported here because the library is an extra.
            from kbroker.server.authentication.token_keys import OAuthBearerExchange

            assert self._token_keys is not None
            self._exchange = OAuthBearerExchange(self._token_keys, action)
        else:
            self._exchange = ScramExchange(MECHANISMS[mechanism], self._find, self._randbytes, self._salt_key, action)
        return SaslHandshakeResponse(mechanisms=names)

    def authenticate(self, token: bytes, now_ms: int) -> SaslAuthenticateResponse | Awaitable[SaslAuthenticateResponse]:
        """Process a token, which `expects_token` has permitted. A response of OAUTHBEARER has to be awaited."""
        exchange = self._exchange
        assert exchange is not None
        if not isinstance(exchange, PlainExchange | ScramExchange):
            return self._authenticate_later(exchange, token, now_ms)
        try:
            return self._respond(exchange, exchange.respond(token), now_ms)
        except AuthenticationError as error:
            return self._refuse(error)

    async def _authenticate_later(
        self, exchange: OAuthBearerExchange, token: bytes, now_ms: int
    ) -> SaslAuthenticateResponse:
        try:
            return self._respond(exchange, await exchange.respond(token), now_ms)
        except AuthenticationError as error:
            return self._refuse(error)

    def _respond(
        self, exchange: PlainExchange | ScramExchange | OAuthBearerExchange, response: bytes, now_ms: int
    ) -> SaslAuthenticateResponse:
        if exchange.user is None:
            return SaslAuthenticateResponse(error_message="", auth_bytes=response)
        principal, former = Principal("User", exchange.user), self.principal
        if former is not None and former != principal:
            change = f"{former.type}.{former.name}: {principal.type}.{principal.name}"
            raise AuthenticationError(f"Cannot change principals during re-authentication from {change}")
        self.principal, self._state, self._exchange, self._completed = principal, _State.DONE, None, exchange
        lifetime_ms = self._get_settings().max_reauth_ms[self.mechanism] or None
        if not isinstance(exchange, PlainExchange | ScramExchange):
            lifetime_ms = min(exchange.lifetime_ms, lifetime_ms or exchange.lifetime_ms)
        self.expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        return SaslAuthenticateResponse(error_message="", auth_bytes=response, session_lifetime_ms=lifetime_ms or 0)

    def _refuse(self, error: AuthenticationError) -> SaslAuthenticateResponse:
        self.fail(f"{error.message} ({error.detail})" if error.detail else error.message)
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=error.message)

    @property
    def is_revoked(self) -> bool:
        """Whether the credential of the login was deleted or changed since. A token is valid until its end."""
        exchange = self._completed
        return isinstance(exchange, PlainExchange | ScramExchange) and exchange.is_revoked()

    @property
    def rejection(self) -> str | None:
        """Why a token was refused whose client has not confirmed the error yet, as it may never do."""
        exchange = self._exchange
        return None if isinstance(exchange, PlainExchange | ScramExchange | None) else exchange.rejection

    def fail(self, reason: str) -> None:
        """End all logins: the connection must be closed."""
        self._state, self._exchange, self.failure = _State.FAILED, None, reason
        if self.on_failure is not None:
            self.on_failure()
