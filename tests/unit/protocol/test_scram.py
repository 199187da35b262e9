"""SCRAM: the example of RFC 7677, a login of both sides, and messages that must fail."""

from base64 import b64decode

import pytest

from protocol.scram import (
    ClientExchange,
    ClientFirst,
    ScramError,
    ScramMechanism,
    ServerExchange,
    credential,
    parse_client_first,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism
# RFC 7677, section 3.
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server(
    password: str = "pencil", mechanism: ScramMechanism = SHA_256, first: bytes = CLIENT_FIRST
) -> ServerExchange:
    stored = credential(mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096)
    return ServerExchange(mechanism, parse_client_first(first), stored, SERVER_NONCE)


def test_the_example_of_rfc_7677() -> None:
    client = ClientExchange(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    exchange = server()
    assert (client.first, exchange.first) == (CLIENT_FIRST, SERVER_FIRST)
    assert client.final(exchange.first) == CLIENT_FINAL
    assert exchange.finish(CLIENT_FINAL) == SERVER_FINAL
    client.verify(SERVER_FINAL)


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["a", "a=b,c", "ü 😀", "=2C"])
def test_a_login(mechanism: ScramMechanism, user: str) -> None:
    client = ClientExchange(mechanism, user, "pässword", "abc")
    assert parse_client_first(client.first).user == user
    exchange = server("pässword", mechanism, client.first)
    client.verify(exchange.finish(client.final(exchange.first)))
    with pytest.raises(ScramError):
        client.verify(b"v=" + b"AAAA" * 8)
    with pytest.raises(ScramError, match="invalid client credentials"):
        server("other", mechanism, client.first).finish(client.final(exchange.first))


@pytest.mark.parametrize(
    "final",
    [
        CLIENT_FINAL.replace(b"$k0", b"$k1"),
        CLIENT_FINAL.replace(b"k0,", b"k0extra,"),
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b"p=dHz", b"p=dHy"),
        CLIENT_FINAL.replace(b"p=dHz", b"p=d"),
        CLIENT_FINAL[: CLIENT_FINAL.index(b",p=")],
        CLIENT_FINAL.replace(b"dVQ=", b"dVQ=,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
        CLIENT_FINAL + b"\xff",
        b"",
    ],
)
def test_a_final_message_that_proves_nothing(final: bytes) -> None:
    with pytest.raises(ScramError):
        server().finish(final)


def test_a_recorded_login_cannot_be_repeated() -> None:
    exchange = ServerExchange(SHA_256, parse_client_first(CLIENT_FIRST), server()._credential, "another")
    with pytest.raises(ScramError, match="nonce"):
        exchange.finish(CLIENT_FINAL)


@pytest.mark.parametrize(
    "first",
    [b"", b"n", b"n,,n=,r=a", b"n,,n=a=b,r=a", b"p=tls-unique,,n=a,r=b", b"y,,n=a,r=b", b"n,,m=x,n=a,r=b", b"n,,n=a",
     b"n,,n=\xff,r=b", b"n,,n=a,r=b\0"],
)  # fmt: skip
def test_a_first_message_that_is_malformed(first: bytes) -> None:
    with pytest.raises(ScramError):
        parse_client_first(first)


def test_parts_of_a_first_message() -> None:
    assert parse_client_first(b"n,a=x=3Dy,n=b,r=c,tokenauth=true") == ClientFirst(
        b"n,a=x=3Dy,", "x=y", "b", "c", "n=b,r=c,tokenauth=true", ",tokenauth=true"
    )


@pytest.mark.parametrize("first", [b"r=abc,s=AAAA,i=4096", b"r=xyz1,s=AAAA,i=4096", b"r=abcd,s=AAAA,i=1", b"e=no"])
def test_a_client_does_not_trust_the_server(first: bytes) -> None:
    with pytest.raises(ScramError):
        ClientExchange(SHA_256, "u", "p", "abc").final(first)
