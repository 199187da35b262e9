"""The logins of SASL OAUTHBEARER, and the keys of an identity provider with which their tokens are verified.

The keys are read again by the first login after sasl.oauthbearer.jwks.endpoint.refresh.ms, and by one whose token names
a key that is not known, since identity providers change their keys. Such tokens cost an attacker nothing, so this
happens at most once in sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms.
"""

from __future__ import annotations

from asyncio import Lock, Semaphore
from typing import TYPE_CHECKING

from kbroker.client.oauth import read_url
from kbroker.config.broker.security import OAUTHBEARER
from kbroker.config.values import ConfigError
from kbroker.runtime.event_log import EventLogger
from kbroker.server.authentication.exchanges import AuthenticationError, invalid_credentials
from kbroker.server.authentication.oauthbearer import (
    INVALID_TOKEN,
    InvalidToken,
    UnknownKey,
    VerifiedToken,
    parse_first,
    parse_keys,
    verify,
)

if TYPE_CHECKING:
    from kbroker.config.broker.security import TokenSettings
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.server")

# Tokens that are verified at the same time, in threads that also read from the disk.
VERIFICATIONS = 2


class TokenKeys:
    def __init__(self, settings: TokenSettings, environment: Environment) -> None:
        """Read the keys. Raises ConfigError: without them nobody could log in."""
        self.settings = settings
        self._environment = environment
        self._lock = Lock()
        self._verifications = Semaphore(VERIFICATIONS)
        self._failures = 0
        try:
            self._keys = parse_keys(read_url(settings.jwks_url))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{settings.jwks_config}: cannot read {settings.jwks_url}: {error}") from None
        self._read_ms = self._tried_ms = environment.clock.mono_ms()

    async def verify(self, token: str) -> VerifiedToken:
        """Raises InvalidToken."""
        settings = self.settings
        if self._environment.clock.mono_ms() - self._read_ms >= settings.refresh_ms:
            backoff_ms = min(settings.retry_backoff_ms << min(self._failures, 20), settings.retry_backoff_max_ms)
            await self._read_again(backoff_ms if self._failures else 0)
        try:
            return await self._verify(token)
        except UnknownKey:
            if not await self._read_again(settings.retry_backoff_max_ms):
                raise
            return await self._verify(token)

    async def _verify(self, token: str) -> VerifiedToken:
        async with self._verifications:
            now_ms = self._environment.clock.now_ms()
            return await self._environment.offload(verify, token, self._keys, self.settings, now_ms)

    async def _read_again(self, interval_ms: int) -> bool:
        """Read the keys unless that was tried in the last `interval_ms`. Returns whether they were read.

        If it fails, the former keys stay.
        """
        asked_ms = self._environment.clock.mono_ms()
        async with self._lock:
            if self._read_ms >= asked_ms:
                # Another login has waited for this one.
                return True
            now_ms = self._environment.clock.mono_ms()
            if now_ms - self._tried_ms < interval_ms or self._tried_ms > asked_ms:
                return False
            self._tried_ms = now_ms
            try:
                self._keys = parse_keys(await self._environment.offload(read_url, self.settings.jwks_url))
            except (OSError, ValueError) as error:
                self._failures += 1
                log.warning("token keys not read", url=self.settings.jwks_url, reason=str(error))
                return False
            self._failures = 0
            self._read_ms = self._environment.clock.mono_ms()
            return True


class OAuthBearerExchange:
    """`user`: set when the token is verified; `lifetime_ms`: how long it is still valid.

    `rejection`: why a token was refused, after which the client may only confirm the error.
    """

    def __init__(self, keys: TokenKeys, action: str) -> None:
        self.user: str | None = None
        self.lifetime_ms = 0
        self.rejection: str | None = None
        self._keys = keys
        self._failure = invalid_credentials(action, OAUTHBEARER)

    async def respond(self, token: bytes) -> bytes:
        """Raises AuthenticationError."""
        if self.rejection is not None:
            raise AuthenticationError(INVALID_TOKEN if token == b"\1" else self._failure, self.rejection)
        try:
            authorization_id, text = parse_first(token)
        except ValueError as error:
            raise AuthenticationError(self._failure, str(error)) from None
        try:
            verified = await self._keys.verify(text)
        except InvalidToken as error:
            self.rejection = str(error)
            return INVALID_TOKEN.encode()
        if authorization_id not in ("", verified.subject):
            raise AuthenticationError(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({verified.subject})"
            )
        self.user, self.lifetime_ms = verified.subject, verified.lifetime_ms
        return b""
