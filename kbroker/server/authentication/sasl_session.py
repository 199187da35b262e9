"""The SASL logins of one connection, without I/O: the first, and those that follow before it expires (KIP-368).

    START --SaslHandshake--> TOKENS --SaslAuthenticate, once or twice--> DONE --SaslHandshake--> TOKENS ...

Everything else is FAILED, which is final: the connection is closed. Errors and their messages are Kafka's. But a SCRAM
login does not tell whether a user exists: one without credentials gets a salt, always the same, and fails at the end.
"""

from __future__ import annotations

import hmac
from base64 import b32encode
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from kbroker.common import Principal
from kbroker.config.broker.security import PLAIN
from protocol.errors import ErrorCode
from protocol.messages.k17_sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from protocol.scram import (
    MECHANISMS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ServerExchange,
    credential,
    parse_client_first,
)

if TYPE_CHECKING:
    from kbroker.config.broker.security import SaslSettings

# Returns the credential of a user.
FindCredential = Callable[[str, ScramMechanism], ScramCredential | None]
RandomBytes = Callable[[int], bytes]

# Kafka's: a client must not keep the broker busy with logins.
MIN_REAUTHENTICATION_INTERVAL_MS = 1000
_NONCE_BYTES = 20
_FAILED = "Authentication failed: "
OTHER_AUTHORIZATION_ID = f"{_FAILED}Client requested an authorization id that is different from username"


class AuthenticationError(Exception):
    """The login has failed. The message is for the client; `detail` is for the log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class PlainExchange:
    """RFC 4616. `user`: set when the password is right."""

    def __init__(self, settings: SaslSettings) -> None:
        self.user: str | None = None
        self._users = settings.plain_users

    def respond(self, token: bytes) -> bytes:
        parts = token.decode(errors="replace").split("\0")
        if len(parts) != 3:
            raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        for part, name in ((user, "username"), (password, "password")):
            if not part:
                raise AuthenticationError(f"{_FAILED}{name} not specified")
        expected = self._users.get(user)
        is_right = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not is_right:
            raise AuthenticationError(f"{_FAILED}Invalid username or password", f"user {user}")
        if authorization_id not in ("", user):
            raise AuthenticationError(OTHER_AUTHORIZATION_ID, f"user {user}, authorization id {authorization_id}")
        self.user = user
        return b""


class ScramExchange:
    """RFC 5802 (protocol/scram.py). `user`: set when the client has proved its password."""

    def __init__(
        self, mechanism: ScramMechanism, find: FindCredential, randbytes: RandomBytes, salt_key: bytes, action: str
    ) -> None:
        self.user: str | None = None
        self._mechanism, self._find, self._randbytes, self._salt_key = mechanism, find, randbytes, salt_key
        # As in Kafka, an error does not say what is wrong.
        name = mechanism.sasl_name
        self._failure = f"Authentication failed during {action} due to invalid credentials with SASL mechanism {name}"
        self._name = ""
        self._is_known = False
        self._server: ServerExchange | None = None

    def respond(self, token: bytes) -> bytes:
        try:
            if self._server is not None:
                response = self._server.finish(token)
                if not self._is_known:
                    raise ScramError("unknown user")
                self.user = self._name
                return response
            first = parse_client_first(token)
        except ScramError as error:
            detail = f"user {self._name}: {error}" if self._name else str(error)
            raise AuthenticationError(self._failure, detail) from None
        if "tokenauth=true" in first.extensions.split(","):
            raise AuthenticationError(self._failure, "delegation tokens are not supported")
        self._name = first.user
        found = self._find(first.user, self._mechanism)
        self._is_known = found is not None
        if found is not None and first.authorization_id not in ("", first.user):
            raise AuthenticationError(OTHER_AUTHORIZATION_ID, f"user {first.user}")
        nonce = b32encode(self._randbytes(_NONCE_BYTES)).decode()
        self._server = ServerExchange(self._mechanism, first, found or self._invented(first.user), nonce)
        return self._server.first

    def _invented(self, user: str) -> ScramCredential:
        """Return a credential of a user that has none. Nobody knows its password."""
        secret = hmac.digest(self._salt_key, f"{self._mechanism} {user}".encode(), "sha512")
        return credential(self._mechanism, secret, new_salt(lambda size: secret[:size]), MIN_ITERATIONS)


def new_salt(randbytes: RandomBytes) -> bytes:
    """Return a salt in the form of those that Kafka's tools make: 26 letters and digits."""
    return b32encode(randbytes(17)).lower()[:26]


class _State(Enum):
    START = auto()
    TOKENS = auto()
    DONE = auto()
    FAILED = auto()


class SaslSession:
    """`principal`: None before the first login. `expires_ms`: when it ends (monotonic), None for never.

    `failure`: why the connection must be closed, None while it need not.
    """

    def __init__(self, settings: SaslSettings, find: FindCredential, randbytes: RandomBytes, salt_key: bytes) -> None:
        self.principal: Principal | None = None
        self.expires_ms: int | None = None
        self.failure: str | None = None
        self.mechanism = ""
        self._settings, self._find, self._randbytes, self._salt_key = settings, find, randbytes, salt_key
        self._state = _State.START
        self._exchange: PlainExchange | ScramExchange | None = None
        self._last_handshake_ms: int | None = None

    @property
    def max_receive_bytes(self) -> int:
        return self._settings.max_receive_bytes

    @property
    def failure_delay_ms(self) -> int:
        return self._settings.failure_delay_ms

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
        names = list(self._settings.mechanisms)
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
        if mechanism == PLAIN:
            self._exchange = PlainExchange(self._settings)
        else:
            action = "re-authentication" if is_again else "authentication"
            self._exchange = ScramExchange(MECHANISMS[mechanism], self._find, self._randbytes, self._salt_key, action)
        return SaslHandshakeResponse(mechanisms=names)

    def authenticate(self, token: bytes, now_ms: int) -> SaslAuthenticateResponse:
        """Process a token, which `expects_token` has permitted."""
        exchange = self._exchange
        assert exchange is not None
        try:
            response = exchange.respond(token)
            if exchange.user is None:
                return SaslAuthenticateResponse(auth_bytes=response)
            principal, former = Principal("User", exchange.user), self.principal
            if former is not None and former != principal:
                change = f"{former.type}.{former.name}: {principal.type}.{principal.name}"
                raise AuthenticationError(f"Cannot change principals during re-authentication from {change}")
        except AuthenticationError as error:
            detail = f" ({error.detail})" if error.detail else ""
            self.fail(f"{error.message}{detail}")
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=error.message
            )
        self.principal, self._state, self._exchange = principal, _State.DONE, None
        lifetime_ms = self._settings.max_reauth_ms[self.mechanism]
        self.expires_ms = now_ms + lifetime_ms if lifetime_ms else None
        return SaslAuthenticateResponse(auth_bytes=response, session_lifetime_ms=lifetime_ms)

    def fail(self, reason: str) -> None:
        """End all logins: the connection must be closed."""
        self._state, self._exchange, self.failure = _State.FAILED, None, reason
