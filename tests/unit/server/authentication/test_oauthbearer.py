"""Tokens: each is accepted or refused as by Apache Kafka 4.4.0, except for those that the last test names."""

import hmac
import json
from typing import Any

import pytest

from kbroker.config.broker.security import TokenSettings
from tests.unit.support.tokens import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    SETTINGS,
    claims,
    ec_key,
    encode,
    first_message,
    jwks,
    rsa_key,
    sign,
)

from kbroker.server.authentication.oauthbearer import (  # isort: skip
    InvalidToken,
    UnknownKey,
    VerifiedToken,
    parse_first,
    parse_keys,
    verify,
)

CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def check(token: str, settings: TokenSettings = SETTINGS) -> VerifiedToken:
    keys = parse_keys(jwks(rsa_key(), *map(ec_key, CURVES.values())))
    return verify(token, keys, settings, NOW_S * 1000)


def token(**changes: Any) -> str:
    return sign(claims(NOW_S, **changes))


@pytest.mark.parametrize("alg", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", *CURVES])
@pytest.mark.parametrize("header", [{}, {"kid": None}, {"typ": "at+jwt"}, {"jku": "http://127.0.0.1:1/"}], ids=str)
def test_a_signed_token(alg: str, header: dict[str, Any]) -> None:
    key = ec_key(CURVES[alg]) if alg in CURVES else rsa_key()
    assert check(sign(claims(NOW_S), key, alg, **header)) == ("alice", 3_600_000)


@pytest.mark.parametrize(
    "changes",
    [{"aud": ["x", AUDIENCE]}, {"exp": NOW_S + 9.5}, {"exp": NOW_S + 1, "iat": 0}, {"nbf": NOW_S + 20},
     {"iat": NOW_S + 20}, {"scope": "a b"}, {"scope": ["a", "b"]}, {"scope": 3}, {"sub": " alice "}],
    ids=str,
)  # fmt: skip
def test_claims_that_are_valid(changes: dict[str, Any]) -> None:
    assert check(token(**changes)).subject == "alice"


def test_the_lifetime_ends_with_the_token() -> None:
    assert check(token(exp=NOW_S + 9.5)).lifetime_ms == 9000
    # In the clock skew after its end it is still a proof, but nothing is served.
    assert check(token(exp=NOW_S - 20, iat=0)).lifetime_ms == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": None}, {"aud": "kafk"}, {"aud": ["x"]}, {"aud": []}, {"aud": 3}, {"aud": [AUDIENCE, 3]},
        # CVE-2024-53861: a part of the issuer.
        {"iss": None}, {"iss": "https://issue"}, {"iss": f"{ISSUER}.evil"}, {"iss": [ISSUER]}, {"iss": {"a": ISSUER}},
        {"exp": None}, {"exp": NOW_S - 40, "iat": 0}, {"exp": "9999999999"}, {"exp": True}, {"exp": 1e30},
        {"exp": NOW_S + 10, "iat": NOW_S + 20}, {"exp": NOW_S + 10, "nbf": NOW_S + 20}, {"exp": -1, "iat": -5},
        {"nbf": NOW_S + 40}, {"nbf": "x"}, {"nbf": [1]}, {"iat": None}, {"iat": "x"}, {"iat": -5},
        {"sub": None}, {"sub": 3}, {"sub": ""}, {"sub": "  "}, {"sub": ["alice"]},
        {"scope": ["a", "a"]}, {"scope": ["a", " "]}, {"scope": [None]}, {"scope": [3]}, {"scope": ""}, {"scope": " "},
    ],
    ids=str,
)  # fmt: skip
def test_claims_that_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        check(token(**changes))


def test_other_claims_may_be_configured() -> None:
    settings = SETTINGS._replace(audiences=(), issuer=None, sub_claim="client_id", clock_skew_s=0)
    assert check(token(aud="x", iss=3, client_id="bob"), settings).subject == "bob"
    with pytest.raises(InvalidToken):
        check(token(), settings)
    with pytest.raises(InvalidToken):
        check(token(client_id="bob", exp=NOW_S, iat=0), settings)


def hmac_token(secret: bytes) -> str:
    signed = f"{encode(json.dumps({'alg': 'HS256', 'kid': 'rsa'}).encode())}.{token().split('.')[1]}"
    return f"{signed}.{encode(hmac.digest(secret, signed.encode(), 'sha256'))}"


def with_header(header: bytes) -> str:
    return f"{encode(header)}.{token().partition('.')[2]}"


FORGED = {
    "no signature": lambda: with_header(b'{"alg":"none"}').rpartition(".")[0] + ".",
    "an empty signature": lambda: token().rpartition(".")[0] + ".",
    "none with a signature": lambda: with_header(b'{"alg":"none"}'),
    "another key": lambda: sign(claims(NOW_S), rsa_key("another"), kid="rsa"),
    # CVE-2022-29217: the public key as a secret that all know.
    "the public key as a secret": lambda: hmac_token(rsa_key().as_pem(private=False)),
    "its JSON as a secret": lambda: hmac_token(json.dumps(rsa_key().as_dict(private=False)).encode()),
    "a key in the token": lambda: sign(
        claims(NOW_S), rsa_key("another"), kid="rsa", jwk=rsa_key("another").as_dict(private=False)
    ),
    "a key of another kind": lambda: sign(claims(NOW_S), kid="P-256"),
    "the algorithm of another curve": lambda: sign(claims(NOW_S), ec_key("P-256"), "ES384"),
    "an algorithm in lower case": lambda: with_header(b'{"alg":"rs256","kid":"rsa"}'),
    # CVE-2026-32597: an extension that would have to be understood.
    "a critical extension": lambda: sign(claims(NOW_S), crit=["x"], x=1),
    "other claims": lambda: ".".join((token().split(".")[0], token(sub="bob").split(".")[1], token().split(".")[2])),
    "an encrypted token": lambda: with_header(b'{"alg":"PBES2-HS256+A128KW","p2c":9000000}') + ".c.d",
    "two parts": lambda: "a.b",
    "nothing": lambda: "",
    "no header": lambda: with_header(b"[]"),
    "a deep header": lambda: with_header(b"[" * 100_000),
    "no claims": lambda: sign(b"[]"),
    "no JSON": lambda: sign(b"hello"),
    "deep claims": lambda: sign(b"[" * 100_000),
    "a claim twice": lambda: sign(json.dumps(claims(NOW_S)).encode()[:-1] + b',"sub":"bob"}'),
    "no end": lambda: sign(json.dumps(claims(NOW_S, exp=None)).encode()[:-1] + b',"exp":Infinity}'),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_tokens_are_refused(forged: str) -> None:
    with pytest.raises(InvalidToken) as raised:
        check(FORGED[forged]())
    assert "alice" not in str(raised.value)


def test_an_unknown_key_is_told_apart() -> None:
    """The identity provider may have a new one."""
    with pytest.raises(UnknownKey):
        check(sign(claims(NOW_S), rsa_key("another")))


@pytest.mark.filterwarnings("ignore:Key size")
def test_keys_that_verify_nothing_are_ignored() -> None:
    from joserfc.jwk import OctKey, RSAKey

    secret = OctKey.generate_key(256).as_dict(private=True)
    short = RSAKey.generate_key(1024).as_dict(private=False) | {"kid": "short"}
    document = json.dumps({"keys": [secret, short, {"kty": "future"}, rsa_key().as_dict(private=False)]}).encode()
    assert [key.kid for key in parse_keys(document)] == ["rsa"]
    for useless in (b"", b"[]", b"{}", b'{"keys":[]}', json.dumps({"keys": [secret]}).encode(), b'{"keys":[{}]}'):
        with pytest.raises(ValueError, match=r"no JSON Web Key Set|no RSA key"):
            parse_keys(useless)


def test_the_first_message_of_a_client() -> None:
    assert parse_first(first_message("a-_.b")) == ("", "a-_.b")
    assert parse_first(first_message("t", "a=2Cb=3D", "traceId=1\1")) == ("a,b=", "t")
    assert parse_first(b"n,,\1auth=bearer   t\1\1") == ("", "t")
    for message in (b"", b"\1", b"abc", b"\xff", first_message("t") + b"x", first_message("t")[1:],
                    first_message("\u00e9"),
                    b"y" + first_message("t")[1:], b"n,,\1auth=Basic t\1\1", b"n,,\1host=x\1\1",
                    first_message("t", extensions="t1=x\1")):  # fmt: skip
        with pytest.raises(ValueError, match=r"client first message|bearer token|decode"):
            parse_first(message)


def test_more_is_refused_than_by_kafka() -> None:
    """A token from the future, an extension of the signature, an algorithm for which no key would be kept."""
    for refused in (token(iat=NOW_S + 40), sign(claims(NOW_S), crit=["b64"], b64=True)):
        with pytest.raises(InvalidToken):
            check(refused)
