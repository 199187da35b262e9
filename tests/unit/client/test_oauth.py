"""Tokens for clients: from a file, or from the token endpoint of an identity provider for client credentials."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kbroker.client.connection import BrokerConnection, BrokerUnreachable
from kbroker.client.oauth import read_url, retrieve_token
from kbroker.client.requests import BrokerError
from kbroker.common import ClientSecurity, TokenSource
from kbroker.config.client_properties import parse_client_security
from kbroker.config.values import ConfigError
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k17_sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse
from tests.unit.support.socket_broker import SocketBroker

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
CREDENTIALS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": f"{MODULE};",
    "sasl.oauthbearer.token.endpoint.url": "https://provider/token",
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": "secret",
}


class Provider(HTTPServer):
    """An identity provider with one response."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body = 200, b""
        self.requests: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.headers.get("Authorization", ""), body))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_token_for_client_credentials(provider: Provider) -> None:
    provider.body = json.dumps({"access_token": "abc", "expires_in": 5}).encode()
    assert retrieve_token(TokenSource(provider.url, "me", "a:b", "read write")) == "abc"
    assert retrieve_token(TokenSource(provider.url, "me", "s")) == "abc"
    assert provider.requests == [
        ("POST", "Basic bWU6YTpi", b"grant_type=client_credentials&scope=read+write"),
        ("POST", "Basic bWU6cw==", b"grant_type=client_credentials"),
    ]


def test_a_token_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a token").write_text("abc\n")
    assert retrieve_token(TokenSource((tmp_path / "a token").as_uri())) == "abc"


@pytest.mark.parametrize(("status", "body"), [(200, b""), (200, b"[]"), (200, b'{"access_token":3}'), (401, b"secret"),
                                              (200, b"[" * 100_000), (200, bytes(2 << 20))])  # fmt: skip
def test_no_token(provider: Provider, status: int, body: bytes) -> None:
    provider.status, provider.body = status, body
    with pytest.raises(OSError, match=r"token") as raised:
        retrieve_token(TokenSource(provider.url, "me", "secret"))
    assert "secret" not in str(raised.value)


def test_redirects_are_not_followed(provider: Provider) -> None:
    """What a provider names is not read: a file, or an address that only this host reaches."""
    provider.status = 302
    with pytest.raises(OSError, match="the response is 302"):
        read_url(provider.url)
    assert len(provider.requests) == 1
    for url in ("ftp://127.0.0.1/x", "data:,x", "http://[", "http://127.0.0.1:1/"):
        with pytest.raises(OSError, match=r"scheme is none|Invalid IPv6|refused"):
            read_url(url)


def security_of(properties: dict[str, str]) -> ClientSecurity:
    return parse_client_security("file", "".join(f"{name}={value}\n" for name, value in properties.items()).encode())


def test_the_properties_of_kafkas_clients() -> None:
    tokens = TokenSource("https://provider/token", "me", "secret", "")
    assert security_of(CREDENTIALS).tokens == tokens
    former = {name: value for name, value in CREDENTIALS.items() if ".client." not in name}
    former["sasl.jaas.config"] = f'{MODULE} clientId="me" clientSecret="secret" scope="x";'
    assert security_of(former).tokens == tokens._replace(scope="x")
    for wrong in ({"sasl.oauthbearer.token.endpoint.url": "ftp://x"}, {"sasl.jaas.config": "x required;"},
                  {"sasl.oauthbearer.client.credentials.client.secret": ""}):  # fmt: skip
        with pytest.raises(ConfigError) as raised:
            security_of(CREDENTIALS | wrong)
        assert "=secret" not in str(raised.value)


def test_a_login_with_a_token(tmp_path: Path) -> None:
    """After an error the client confirms it, and then learns of the failure."""
    received = []

    def authenticate(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        received.append(bytes(request.auth_bytes))
        if received[-1] == b"\1":
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="no")
        return SaslAuthenticateResponse(auth_bytes=b"{}" if b"bad" in received[-1] else b"")

    broker = SocketBroker(
        {ApiKey.SASL_HANDSHAKE: lambda request: SaslHandshakeResponse(), ApiKey.SASL_AUTHENTICATE: authenticate}
    )
    file = tmp_path / "token"
    security = ClientSecurity(mechanism="OAUTHBEARER", tokens=TokenSource(file.as_uri()))
    file.write_text("good")
    BrokerConnection(broker.address, client_id="x", security=security).close()
    file.write_text("bad")
    with pytest.raises(BrokerError, match="no"):
        BrokerConnection(broker.address, client_id="x", security=security)
    file.unlink()
    with pytest.raises(BrokerUnreachable, match="no token from file:"):
        BrokerConnection(broker.address, client_id="x", security=security)
    assert received == [b"n,,\1auth=Bearer good\1\1", b"n,,\1auth=Bearer bad\1\1", b"\1"]
    broker.close()
