"""The keys of an identity provider are read when they are old or a new one is needed, not as often as clients like."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.values import ConfigError
from tests.unit.support.async_test import async_test
from tests.unit.support.tokens import NOW_S, SETTINGS, claims, jwks, rsa_key, sign

from kbroker.server.authentication.oauthbearer import InvalidToken, UnknownKey  # isort: skip
from kbroker.server.authentication.token_keys import TokenKeys  # isort: skip


class Provider:
    """A file with keys, a clock, and how often the file was read since the start."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "jwks.json"
        self.mono_ms = 0
        self.reads = 0
        self.publish("one")
        clock = SimpleNamespace(mono_ms=lambda: self.mono_ms, now_ms=lambda: NOW_S * 1000)
        self.environment: Any = SimpleNamespace(clock=clock, offload=self.offload)
        self.keys = TokenKeys(SETTINGS._replace(jwks_url=f"file:{self.file}"), self.environment)

    def publish(self, *names: str) -> None:
        self.file.write_bytes(jwks(*map(rsa_key, names)))

    async def offload(self, function: Callable[..., Any], *args: object) -> Any:
        self.reads += function.__name__ == "read_url"
        return function(*args)

    def log_in(self, key: str) -> Awaitable[tuple[str, int]]:
        return self.keys.verify(sign(claims(NOW_S), rsa_key(key)))


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


@async_test
async def test_keys_are_read_again_when_they_are_old(provider: Provider) -> None:
    provider.mono_ms = SETTINGS.refresh_ms - 1
    await provider.log_in("one")
    assert provider.reads == 0
    provider.publish("two")
    provider.mono_ms += 1
    with pytest.raises(UnknownKey):
        await provider.log_in("one")
    assert provider.reads == 1


@async_test
async def test_a_new_key_is_found_by_the_first_token_that_it_has_signed(provider: Provider) -> None:
    provider.publish("one", "two")
    provider.mono_ms = SETTINGS.retry_backoff_max_ms
    assert (await provider.log_in("two"))[0] == "alice"


@async_test
async def test_unknown_keys_do_not_cause_a_request_each(provider: Provider) -> None:
    """CVE-2026-48524."""
    provider.keys.settings = provider.keys.settings._replace(refresh_ms=10**9)
    for second in range(25):
        provider.mono_ms = second * 1000
        for name in ("two", "three"):
            with pytest.raises(UnknownKey):
                await provider.log_in(name)
    assert provider.reads == 2
    # No key is looked for because of a wrong signature.
    provider.mono_ms += 60_000
    with pytest.raises(InvalidToken):
        await provider.keys.verify(sign(claims(NOW_S), rsa_key("two"), kid="one"))
    assert provider.reads == 2


@async_test
async def test_the_former_keys_stay_while_new_ones_cannot_be_read(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.file.unlink()
    provider.mono_ms = SETTINGS.refresh_ms
    for _ in range(50):
        await provider.log_in("one")
        provider.mono_ms += 100
    # After 0, 200, 400, 800, 1600 ms.
    assert provider.reads == 5
    assert "token keys not read" in caplog.records[0].message
    provider.publish("one")
    provider.mono_ms += SETTINGS.retry_backoff_max_ms
    await provider.log_in("one")
    await provider.log_in("one")
    assert provider.reads == 6


@pytest.mark.parametrize("content", [None, b"", b"{}", bytes(2 << 20)], ids=["none", "empty", "no keys", "large"])
def test_a_broker_does_not_start_without_keys(provider: Provider, content: bytes | None) -> None:
    provider.file.unlink()
    if content is not None:
        provider.file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^sasl.oauthbearer.jwks.endpoint.url: cannot read file:"):
        TokenKeys(provider.keys.settings, provider.environment)
