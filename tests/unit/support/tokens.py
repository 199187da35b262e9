"""Signed tokens of an identity provider, with keys of its own."""

import json
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

import pytest

pytest.importorskip("joserfc", reason="not run: tokens need joserfc (extra `oauth`)")

from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from kbroker.config.broker.security import TokenSettings

ISSUER, AUDIENCE = "https://issuer", "kafka"
NOW_S = 1_700_000_000
SETTINGS = TokenSettings(
    "sasl.oauthbearer.jwks.endpoint.url", "file:/x", (AUDIENCE, "other"), ISSUER, 30, "sub", "scope", 1000, 100, 10_000
)


@cache
def rsa_key(kid: str = "rsa") -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid})


@cache
def ec_key(curve: str = "P-256") -> ECKey:
    return ECKey.generate_key(curve, {"kid": curve})


def jwks(*keys: RSAKey | ECKey) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def encode(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def claims(now_s: int, **changes: Any) -> dict[str, Any]:
    """Return those of a valid token of alice; None removes one."""
    values = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now_s, "exp": now_s + 3600} | changes
    return {name: value for name, value in values.items() if value is not None}


def sign(payload: dict[str, Any] | bytes, key: Any = None, alg: str = "RS256", **header: Any) -> str:
    """Return a token; `header` changes its header, None removes a field."""
    key = key or rsa_key()
    fields = {"alg": alg, "kid": key.kid} | header
    head = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    signed = f"{encode(head)}.{encode(body)}"
    return f"{signed}.{encode(jws.JWSRegistry.algorithms[alg].sign(signed.encode(), key))}"


def first_message(token: str, authorization_id: str = "", extensions: str = "") -> bytes:
    name = f"a={authorization_id}" if authorization_id else ""
    return f"n,{name},\1auth=Bearer {token}\1{extensions}\1".encode()
