"""The logins of a connection: states, errors and messages are those of Apache Kafka 4.4.0, with one difference."""

from random import Random

import pytest

from kbroker.common import Principal
from kbroker.config.broker.security import SaslSettings
from kbroker.server.authentication.sasl_session import SaslSession
from protocol.errors import ErrorCode
from protocol.messages.k17_sasl import SaslAuthenticateResponse
from protocol.scram import ClientExchange, ScramCredential, ScramMechanism, credential, salted_password

SHA_256 = ScramMechanism.SCRAM_SHA_256
SETTINGS = SaslSettings(
    ("PLAIN", "SCRAM-SHA-256"), {"alice": "secret", "bob": "secret"}, {"PLAIN": 0, "SCRAM-SHA-256": 0}, 65536, 100
)
AGAIN = SETTINGS._replace(max_reauth_ms={"PLAIN": 5000, "SCRAM-SHA-256": 5000})
CREDENTIALS = {"carol": credential(SHA_256, salted_password(SHA_256, "pw", b"salt", 4096), b"salt", 4096)}
INVALID = "Authentication failed: Invalid username or password"
OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"
SCRAM_FAILED = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
)


def find(user: str, mechanism: ScramMechanism) -> ScramCredential | None:
    return CREDENTIALS.get(user) if mechanism is SHA_256 else None


def session(settings: SaslSettings = SETTINGS, mechanism: str = "PLAIN", seed: int = 0) -> SaslSession:
    new = SaslSession(lambda: settings, find, Random(seed).randbytes, b"key")
    assert new.handshake(mechanism, 0).error_code == 0
    return new


def plain(user: str, password: str, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (plain("alice", "x"), INVALID),
        (plain("nobody", "x"), INVALID),
        (b"\xff\0\xff\0\xff", INVALID),
        (plain("alice", "secret\0"), "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (plain("", "x"), "Authentication failed: username not specified"),
        (plain("alice", ""), "Authentication failed: password not specified"),
        # CVE-2017-12610.
        (plain("alice", "secret", "bob"), OTHER_ID),
    ],
)
def test_a_plain_login_that_fails(token: bytes, message: str) -> None:
    login = session()
    response = login.authenticate(token, 0)
    assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    assert response.auth_bytes == b""
    assert login.principal is None
    assert login.failure is not None
    assert "secret" not in login.failure
    assert not login.expects_token
    assert not login.may_handshake(10_000)


@pytest.mark.parametrize("authorization_id", ["", "alice"])
def test_a_plain_login(authorization_id: str) -> None:
    login = session()
    response = login.authenticate(plain("alice", "secret", authorization_id), 7)
    assert (response.error_code, response.session_lifetime_ms) == (0, 0)
    assert (login.principal, login.failure, login.expires_ms) == (Principal("User", "alice"), None, None)
    # Without an end of the login, another one is ILLEGAL_SASL_STATE.
    assert not login.may_handshake(10_000)


def scram(login: SaslSession, user: str, password: str, header: bytes = b"n,,") -> SaslAuthenticateResponse:
    client = ClientExchange(SHA_256, user, password, "nonce")
    response = login.authenticate(client.first.replace(b"n,,", header), 0)
    if not response.error_code:
        response = login.authenticate(client.final(response.auth_bytes), 0)
        if not response.error_code:
            client.verify(response.auth_bytes)
    return response


def test_a_scram_login() -> None:
    login = session(mechanism="SCRAM-SHA-256")
    assert scram(login, "carol", "pw").error_code == 0
    assert login.principal == Principal("User", "carol")


@pytest.mark.parametrize(
    ("user", "password", "header", "message"),
    [
        ("carol", "x", b"n,,", SCRAM_FAILED),
        ("nobody", "pw", b"n,,", SCRAM_FAILED),
        ("carol", "pw", b"n,a=bob,", OTHER_ID),
        ("carol", "pw", b"y,,", SCRAM_FAILED),
    ],
)
def test_a_scram_login_that_fails(user: str, password: str, header: bytes, message: str) -> None:
    login = session(mechanism="SCRAM-SHA-256")
    response = scram(login, user, password, header)
    assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    assert login.principal is None


def test_delegation_tokens_are_not_users() -> None:
    login = session(mechanism="SCRAM-SHA-256")
    assert login.authenticate(b"n,,n=carol,r=abc,tokenauth=true", 0).error_message == SCRAM_FAILED


def test_nobody_learns_whether_a_user_exists() -> None:
    """Apache Kafka fails at the first message of an unknown user."""
    salts = set()
    for seed in range(3):
        response = session(mechanism="SCRAM-SHA-256", seed=seed).authenticate(b"n,,n=nobody,r=abc", 0)
        assert response.error_code == 0
        salts.add(response.auth_bytes.partition(b",")[2])
    assert len(salts) == 1
    assert salts.pop().endswith(b",i=4096")


@pytest.mark.parametrize("mechanism", ["GSSAPI", "plain", "SCRAM-SHA-512", ""])
def test_a_mechanism_that_is_not_enabled(mechanism: str) -> None:
    login = SaslSession(lambda: SETTINGS, find, Random(0).randbytes, b"key")
    response = login.handshake(mechanism, 0)
    assert (response.error_code, response.mechanisms) == (33, ["PLAIN", "SCRAM-SHA-256"])
    assert login.failure is not None


def again(mechanism: str = "PLAIN") -> SaslSession:
    login = session(AGAIN)
    assert login.authenticate(plain("alice", "secret"), 1000).session_lifetime_ms == 5000
    assert login.expires_ms == 6000
    assert login.may_handshake(2000)
    login.handshake(mechanism, 2000)
    return login


def test_a_second_login_prolongs_the_first() -> None:
    login = again()
    assert login.authenticate(plain("alice", "secret"), 2500).session_lifetime_ms == 5000
    assert login.expires_ms == 7500
    assert not login.may_handshake(2999)
    assert login.may_handshake(3000)


def test_a_second_login_has_the_same_principal_and_mechanism() -> None:
    login = again()
    response = login.authenticate(plain("bob", "secret"), 2500)
    message = "Cannot change principals during re-authentication from User.alice: User.bob"
    assert (response.error_code, response.error_message) == (58, message)
    assert login.principal == Principal("User", "alice")
    assert login.failure is not None
    assert again("SCRAM-SHA-256").failure is not None
