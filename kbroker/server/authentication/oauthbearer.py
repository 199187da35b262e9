"""SASL OAUTHBEARER (RFC 7628, KIP-768): a client sends a signed token (RFC 7519), whose subject is the user.

    client: n,a=AUTHORIZATION_ID,^Aauth=Bearer TOKEN^A^A     server: nothing, or {"status":"invalid_token"}
    client: ^A, after an error                               server: the error again, which fails the login

Responses are those of Apache Kafka 4.4.0 with OAuthBearerValidatorCallbackHandler. As there, extensions (KIP-342) are
accepted and ignored. Unlike there, a token from the future is refused, and a connection may try one token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from joserfc import jws
from joserfc.jwk import ECKey, KeySet, RSAKey

if TYPE_CHECKING:
    from kbroker.config.broker.security import TokenSettings

# Signatures of public keys only: with HS256, a public key would be taken for a secret that all know.
ALGORITHMS = tuple(f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in (256, 384, 512))
MIN_RSA_BITS = 2048
INVALID_TOKEN = '{"status":"invalid_token"}'
# Seconds: times above are no times, but would exceed a field of a response.
_MAX_TIME_S = 10**12

_NAME = r"(?:[^\0=,\x80-\U0010ffff]|=2C|=3D)+"
_FIRST = re.compile(rf"n,(?:a=({_NAME}))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_AUTH = re.compile(r"(\w+) +([-\w.]+)", re.ASCII)

Key = RSAKey | ECKey


class InvalidToken(Exception):
    """A token is refused. The text is for the log, without the token."""


class UnknownKey(InvalidToken):
    """A token names a key that is not known: the identity provider may have a new one."""


class VerifiedToken(NamedTuple):
    """`lifetime_ms`: how long it is still valid; 0 during the clock skew after its end."""

    subject: str
    lifetime_ms: int


class _Registry(jws.JWSRegistry):
    # Headers with the certificates of a key; the frame bounds all of it.
    max_header_length = 64 * 1024


_REGISTRY = _Registry(algorithms=ALGORITHMS, strict_check_header=False)


def parse_first(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token of a client's first message. Raises ValueError."""
    match = _FIRST.fullmatch(message.decode())
    if match is None:
        raise ValueError("invalid client first message")
    pairs = dict(pair.split("=", 1) for pair in match[2].split("\1") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth[1].lower() != "bearer":
        raise ValueError("there is no bearer token")
    return (match[1] or "").replace("=2C", ",").replace("=3D", "="), auth[2]


def parse_keys(document: bytes) -> tuple[Key, ...]:
    """Return the keys of a JWKS that can verify tokens. Raises ValueError."""
    try:
        keys = KeySet.import_key_set(json.loads(document)).keys
    except Exception as error:
        raise ValueError(f"no JSON Web Key Set: {error}") from None
    found = tuple(
        key for key in keys
        if isinstance(key, ECKey) or (isinstance(key, RSAKey) and key.raw_value.key_size >= MIN_RSA_BITS)
    )  # fmt: skip
    if not found:
        raise ValueError(f"no RSA key of at least {MIN_RSA_BITS} bits and no EC key")
    return found


def verify(token: str, keys: Iterable[Key], settings: TokenSettings, now_ms: int) -> VerifiedToken:
    """Verify a token, in 0.1 to 3 ms. Raises InvalidToken."""
    try:
        signed = jws.extract_compact(token.encode(), registry=_REGISTRY)
        header = signed.headers()
        if "crit" in header:
            raise InvalidToken("it has critical extensions")
        if header.get("alg") not in ALGORITHMS:
            raise InvalidToken(f"its algorithm is none of {', '.join(ALGORITHMS)}")
        if not any(_is_signed(signed, key) for key in _candidates(header, keys)):
            raise InvalidToken("its signature is wrong")
        claims = json.loads(signed.payload or b"", object_pairs_hook=_distinct, parse_constant=_reject)
        if not isinstance(claims, dict):
            raise InvalidToken("its claims are no object")
        return check_claims(claims, settings, now_ms)
    except InvalidToken:
        raise
    except Exception as error:
        # Whatever a token causes in the library or here: it is not verified.
        raise InvalidToken(f"malformed: {type(error).__name__}") from None


def _candidates(header: dict[str, Any], keys: Iterable[Key]) -> list[Key]:
    """Return the keys that may have signed a token: those with its key id, or without one all of its kind."""
    kind = "EC" if header["alg"].startswith("ES") else "RSA"
    found = [key for key in keys if "kid" not in header or key.kid == header["kid"]]
    if not found:
        raise UnknownKey("its key is unknown")
    return [key for key in found if key.key_type == kind and key.get("alg") in (None, header["alg"])]


def _is_signed(signed: jws.CompactSignature, key: Key) -> bool:
    try:
        return jws.validate_compact(signed, key, registry=_REGISTRY)
    except Exception:
        # The key has another use or curve.
        return False


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a claim that occurs twice: two readers may take different ones."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidToken("a claim occurs twice")
    return dict(pairs)


def _reject(constant: str) -> None:
    raise InvalidToken(f"{constant} is no number")


def check_claims(claims: dict[str, Any], settings: TokenSettings, now_ms: int) -> VerifiedToken:
    """Check the claims of a token whose signature is right. Raises InvalidToken."""
    expires_s, issued_s, skew_ms = _time(claims, "exp"), _time(claims, "iat"), settings.clock_skew_s * 1000
    not_before_s = _time(claims, "nbf") if "nbf" in claims else issued_s
    if expires_s * 1000 + skew_ms <= now_ms or expires_s < max(issued_s, not_before_s):
        raise InvalidToken("it has expired")
    if max(issued_s, not_before_s) * 1000 > now_ms + skew_ms:
        raise InvalidToken("it is not valid yet")
    if settings.issuer is not None and claims.get("iss") != settings.issuer:
        raise InvalidToken("it has another issuer")
    audiences = _texts(claims.get("aud"))
    if settings.audiences and not (audiences and set(audiences) & set(settings.audiences)):
        raise InvalidToken("it has another audience")
    scope = claims.get(settings.scope_claim)
    if isinstance(scope, str | list):
        scopes = _texts(scope)
        if scopes is None or len({each.strip() for each in scopes} - {""}) < len(scopes):
            raise InvalidToken("its scope is invalid")
    subject = claims.get(settings.sub_claim)
    if not isinstance(subject, str) or not subject.strip():
        raise InvalidToken("it has no subject")
    return VerifiedToken(subject.strip(), max(0, int(expires_s) * 1000 - now_ms))


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_TIME_S:
        raise InvalidToken(f"{name} is no time")
    return value


def _texts(value: Any) -> list[str] | None:
    """Return the texts of a claim that is one or a list of them, else None."""
    values = [value] if isinstance(value, str) else value
    return values if isinstance(values, list) and all(isinstance(each, str) for each in values) else None
