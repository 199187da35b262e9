"""The exchanges of SASL PLAIN and SCRAM: what a server responds to the messages of a login.

Errors and their messages are Kafka's. But a SCRAM login does not tell whether a user exists: one without credentials
gets a salt, the same from all brokers of a cluster, and fails at the end.
"""

from __future__ import annotations

import hmac
from base64 import b32encode
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.scram import (
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

_NONCE_BYTES = 20
_FAILED = "Authentication failed: "
OTHER_AUTHORIZATION_ID = f"{_FAILED}Client requested an authorization id that is different from username"


class AuthenticationError(Exception):
    """The login has failed. The message is for the client; `detail` is for the log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


def invalid_credentials(action: str, mechanism: str) -> str:
    """Return an error that, as in Kafka, does not say what is wrong. `action`: authentication or re-authentication."""
    return f"Authentication failed during {action} due to invalid credentials with SASL mechanism {mechanism}"


class PlainExchange:
    """RFC 4616. `user`: set when the password is right. `get_settings`: returns those of now."""

    def __init__(self, get_settings: Callable[[], SaslSettings]) -> None:
        self.user: str | None = None
        self._password = ""
        self._get_settings = get_settings

    def respond(self, token: bytes) -> bytes:
        parts = token.decode(errors="replace").split("\0")
        if len(parts) != 3:
            raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        for part, name in ((user, "username"), (password, "password")):
            if not part:
                raise AuthenticationError(f"{_FAILED}{name} not specified")
        expected = self._get_settings().plain_users.get(user)
        is_right = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not is_right:
            raise AuthenticationError(f"{_FAILED}Invalid username or password", f"user {user}")
        if authorization_id not in ("", user):
            raise AuthenticationError(OTHER_AUTHORIZATION_ID, f"user {user}, authorization id {authorization_id}")
        self.user, self._password = user, password
        return b""

    def is_revoked(self) -> bool:
        """Return whether the user was removed or has got another password."""
        return self._get_settings().plain_users.get(self.user or "") != self._password


class ScramExchange:
    """RFC 5802 (protocol/scram.py). `user`: set when the client has proved its password."""

    def __init__(
        self, mechanism: ScramMechanism, find: FindCredential, randbytes: RandomBytes, salt_key: bytes, action: str
    ) -> None:
        self.user: str | None = None
        self._mechanism, self._find, self._randbytes, self._salt_key = mechanism, find, randbytes, salt_key
        self._failure = invalid_credentials(action, mechanism.sasl_name)
        self._name = ""
        self._credential: ScramCredential | None = None
        self._server: ServerExchange | None = None

    def respond(self, token: bytes) -> bytes:
        try:
            if self._server is not None:
                response = self._server.finish(token)
                if self._credential is None or self.is_revoked():
                    raise ScramError("unknown user")
                self.user, self._server = self._name, None
                return response
            first = parse_client_first(token)
        except ScramError as error:
            detail = f"user {self._name}: {error}" if self._name else str(error)
            raise AuthenticationError(self._failure, detail) from None
        if "tokenauth=true" in first.extensions.split(","):
            raise AuthenticationError(self._failure, "delegation tokens are not supported")
        self._name = first.user
        found = self._credential = self._find(first.user, self._mechanism)
        if found is not None and first.authorization_id not in ("", first.user):
            raise AuthenticationError(OTHER_AUTHORIZATION_ID, f"user {first.user}")
        nonce = b32encode(self._randbytes(_NONCE_BYTES)).decode()
        self._server = ServerExchange(self._mechanism, first, found or self._invented(first.user), nonce)
        return self._server.first

    def is_revoked(self) -> bool:
        """Return whether the credential was deleted or replaced since it was used."""
        return self._find(self._name, self._mechanism) != self._credential

    def _invented(self, user: str) -> ScramCredential:
        """Return a credential of a user that has none. Nobody knows its password."""
        secret = hmac.digest(self._salt_key, f"{self._mechanism} {user}".encode(), "sha512")
        return credential(self._mechanism, secret, new_salt(lambda size: secret[:size]), MIN_ITERATIONS)


def new_salt(randbytes: RandomBytes) -> bytes:
    """Return a salt in the form of those that Kafka's tools make: 26 letters and digits."""
    return b32encode(randbytes(17)).lower()[:26]
