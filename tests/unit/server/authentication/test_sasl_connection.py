"""A broker with a SASL listener, in virtual time: what is served before a login, after it, and when it has expired."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kbroker.common import Principal
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k17_sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from protocol.scram import ClientExchange, ScramMechanism, salted_password
from tests.unit.support import tokens
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import HOST, PORT, Machine, broker_test

SECURE_PORT = 9094
SHA_512 = ScramMechanism.SCRAM_SHA_512
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
LISTENERS = {
    "listeners": f"PLAINTEXT://{HOST}:{PORT},SEC://{HOST}:{SECURE_PORT}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SEC:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sec.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
    ),
    "listener.name.sec.plain.connections.max.reauth.ms": "60000",
    "max.connections.per.ip": "5",
}
METADATA = MetadataRequest(topics=None)
VERSIONS = ApiVersionsRequest(client_software_name="x", client_software_version="1")


async def connect(machine: Machine, host: str = "client") -> Client:
    loop = machine.loop
    _, client = await loop.create_connection(lambda: Client(loop), HOST, SECURE_PORT, local_addr=(host, 0))
    machine._clients.append(client)
    return client


async def handshake(client: Client, mechanism: str = "PLAIN") -> int:
    response = await client.request(SaslHandshakeRequest(mechanism=mechanism), 1, SaslHandshakeResponse)
    return response.error_code


async def authenticate(client: Client, token: bytes = b"\0alice\0secret") -> SaslAuthenticateResponse:
    return await client.request(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)


async def log_in(machine: Machine) -> Client:
    client = await connect(machine)
    assert await handshake(client) == 0
    assert (await authenticate(client)).session_lifetime_ms == 60_000
    return client


def connections(machine: Machine) -> list[Any]:
    return list(machine.broker._server.connections)


@broker_test(**LISTENERS)
async def test_a_client_logs_in_and_is_served(machine: Machine) -> None:
    client = await connect(machine)
    await client.request(VERSIONS, 3, ApiVersionsResponse)
    assert await handshake(client) == 0
    assert (await authenticate(client)).error_code == 0
    metadata = await client.request(METADATA, 12, MetadataResponse)
    assert [(broker.host, broker.port) for broker in metadata.brokers] == [(HOST, SECURE_PORT)]
    (connection,) = connections(machine)
    assert connection.identity.principal == Principal("User", "alice")
    assert connection.client_software == ("x", "1")
    # The login and its request in one segment.
    other = await connect(machine)
    assert await handshake(other) == 0
    login, token = other.prepare(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2, SaslAuthenticateResponse)
    first, response = other.prepare(METADATA, 12, MetadataResponse)
    other.transport.write(login + first)
    assert (await token).error_code == 0
    assert (await response).brokers == metadata.brokers


@broker_test(**LISTENERS)
async def test_nothing_else_is_served_before_the_login(machine: Machine) -> None:
    async def closes(*requests: Any) -> None:
        client = await connect(machine)
        *served, last = requests
        for request, version, response_class in served:
            await client.request(request, version, response_class)
        client.send(*last)
        await asyncio.wait_for(client.closed, 1)

    metadata, versions = (METADATA, 12, MetadataResponse), (VERSIONS, 3, ApiVersionsResponse)
    plain = (SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    token = (SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2, SaslAuthenticateResponse)
    wrong = (SaslAuthenticateRequest(auth_bytes=b"\0alice\0x"), 2, SaslAuthenticateResponse)
    for story in ([metadata], [versions, metadata], [versions, versions], [token], [plain, metadata], [plain, plain],
                  [plain, versions], [plain, wrong, metadata], [plain, wrong, token]):  # fmt: skip
        try:
            await closes(*story)
        except ConnectionResetError:
            assert story[1] == wrong
    assert not connections(machine)
    unauthenticated = [stats for stats in machine.broker._server.context.dispatch.stats() if stats.api_key == 3]
    assert sum(stats.requests for stats in unauthenticated) == 0


@broker_test(**LISTENERS)
async def test_a_failed_login_gets_its_error_after_a_delay_and_is_closed(machine: Machine) -> None:
    client = await connect(machine)
    await handshake(client)
    begin = machine.loop.time()
    response = await authenticate(client, b"\0alice\0x")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert machine.loop.time() - begin >= 0.1
    await asyncio.wait_for(client.closed, 1)


@broker_test(**LISTENERS)
async def test_raw_tokens_follow_the_first_handshake_version(machine: Machine) -> None:
    for password, succeeds in (("secret", True), ("x", False)):
        client = await connect(machine)
        await client.request(SaslHandshakeRequest(mechanism="PLAIN"), 0, SaslHandshakeResponse)
        received = bytearray()
        client.data_received = received.extend  # type: ignore[method-assign]
        token = f"\0alice\0{password}".encode()
        client.transport.write(len(token).to_bytes(4) + token)
        if succeeds:
            await asyncio.sleep(1)
            assert received == bytes(4)
        else:
            await asyncio.wait_for(client.closed, 1)
    assert [str(each.identity.principal) for each in connections(machine)] == ["User:alice"]


@broker_test(**LISTENERS)
async def test_strangers_have_little_time_and_memory(machine: Machine) -> None:
    idle, slow, large = [await connect(machine) for _ in range(3)]
    slow.transport.write(b"\0\0\xff\xff" + b"\0\x11\0\1" + bytes(100))
    large.transport.write((524_289).to_bytes(4))
    await asyncio.wait_for(large.closed, 1)
    assert not idle.closed.done()
    http = await connect(machine)
    http.transport.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(http.closed, 1)
    await asyncio.wait_for(asyncio.gather(idle.closed, slow.closed), 11)
    assert not connections(machine)
    listener = machine.broker._server.listeners["SEC"]
    assert (listener.accepted, listener.connections) == (4, 0)


@broker_test(**LISTENERS | {"max.connections.per.ip": "20"})
async def test_large_frames_before_logins_share_a_bound(machine: Machine) -> None:
    """4 MiB, from the announcement on: seven frames of the largest size."""
    buffers = machine.broker._server.listeners["SEC"].login_buffers
    strangers = [await connect(machine) for _ in range(7)]
    for stranger in strangers:
        stranger.transport.write((524_288).to_bytes(4) + b"\0\x24\0\1")
    await machine.until(lambda: buffers.large_frame_bytes == 7 * 524_292)
    refused = await connect(machine)
    refused.transport.write((524_288).to_bytes(4))
    await asyncio.wait_for(refused.closed, 1)
    # Usual logins do not need any of it, and large ones have what others do not use.
    user = await log_in(machine)
    assert (await user.request(METADATA, 12, MetadataResponse)).brokers
    strangers[0].close()
    await machine.until(lambda: buffers.large_frame_bytes == 6 * 524_292)
    large = await connect(machine)
    assert await handshake(large) == 0
    assert (await authenticate(large, bytes(500_000))).error_code == FAILED
    await asyncio.wait_for(asyncio.gather(*(each.closed for each in strangers)), 11)
    assert buffers.large_frame_bytes == 0


@broker_test(**LISTENERS)
async def test_strangers_count_and_others_are_served(machine: Machine) -> None:
    strangers = [await connect(machine) for _ in range(4)]
    user = await log_in(machine)
    refused = await connect(machine)
    await asyncio.wait_for(refused.closed, 1)
    assert (await user.request(METADATA, 12, MetadataResponse)).brokers
    assert not any(each.closed.done() for each in strangers)


@broker_test(**LISTENERS)
async def test_a_login_that_has_expired_serves_nothing(machine: Machine) -> None:
    client, other = await log_in(machine), await log_in(machine)
    await asyncio.sleep(59)
    for each in (client, other):
        assert (await each.request(METADATA, 12, MetadataResponse)).brokers
    assert await handshake(client) == 0
    assert (await authenticate(client)).session_lifetime_ms == 60_000
    await asyncio.sleep(2)
    assert (await client.request(METADATA, 12, MetadataResponse)).brokers
    with pytest.raises(ConnectionResetError):
        await other.request(METADATA, 12, MetadataResponse)
    # An expired login may be renewed.
    await asyncio.sleep(70)
    assert await handshake(client) == 0
    assert (await authenticate(client)).session_lifetime_ms == 60_000
    assert (await client.request(METADATA, 12, MetadataResponse)).brokers
    # While it is renewed, nothing else is served.
    await asyncio.sleep(1)
    assert await handshake(client) == 0
    with pytest.raises(ConnectionResetError):
        await client.request(METADATA, 12, MetadataResponse)


async def scram_login(machine: Machine, user: str, password: str, client: Client | None = None) -> int:
    client = client or await connect(machine)
    assert await handshake(client, "SCRAM-SHA-512") == 0
    exchange = ClientExchange(SHA_512, user, password, "nonce")
    response = await authenticate(client, exchange.first)
    response = await authenticate(client, exchange.final(response.auth_bytes))
    if not response.error_code:
        exchange.verify(response.auth_bytes)
    return response.error_code


async def alter_user(machine: Machine, name: str, password: str | None, mechanism: ScramMechanism = SHA_512) -> None:
    """Set a password, or delete it if it is None."""
    row = {"name": name, "mechanism": mechanism}
    request = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(**row)])
    if password is not None:
        salted = salted_password(mechanism, password, b"salt", 4096)
        upsertion = ScramCredentialUpsertion(**row, iterations=4096, salt=b"salt", salted_password=salted)
        request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
    client = await machine.client()
    response = await client.request(request, 0, AlterUserScramCredentialsResponse)
    assert [(each.user, each.error_code) for each in response.results] == [(name, 0)]
    client.close()


@broker_test(**LISTENERS | {"max.connections.per.ip": "20"})
async def test_a_users_connections_end_with_its_credential(machine: Machine) -> None:
    """Within a second; Kafka waits until they log in again."""
    for name in ("alice", "bob"):
        await alter_user(machine, name, "one")
    await alter_user(machine, "alice", "one", ScramMechanism.SCRAM_SHA_256)
    alice, bob, later = [await connect(machine) for _ in range(3)]
    for name, client in (("alice", alice), ("bob", bob)):
        assert await scram_login(machine, name, "one", client) == 0
    plain = await log_in(machine)
    # A login that is in progress does not succeed with the former password.
    assert await handshake(later, "SCRAM-SHA-512") == 0
    exchange = ClientExchange(SHA_512, "bob", "one", "nonce")
    response = await authenticate(later, exchange.first)
    # That of another mechanism is another credential; so is the same password with another salt.
    await alter_user(machine, "alice", None, ScramMechanism.SCRAM_SHA_256)
    assert not alice.closed.done()
    await alter_user(machine, "bob", "two")
    await asyncio.wait_for(bob.closed, 1)
    assert not alice.closed.done()
    assert (await authenticate(later, exchange.final(response.auth_bytes))).error_code == FAILED
    await alter_user(machine, "alice", None)
    await asyncio.wait_for(alice.closed, 1)
    assert (await plain.request(METADATA, 12, MetadataResponse)).brokers
    assert await scram_login(machine, "bob", "two") == 0
    # PLAIN users are in the config, which may change at run time.
    config = "listener.name.sec.plain.sasl.jaas.config"
    change = AlterableConfig(name=config, config_operation=0, value=LISTENERS[config].replace("secret", "new"))
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    altered = await (await machine.client()).request(request, 1, IncrementalAlterConfigsResponse)
    assert altered.responses[0].error_code == 0
    await asyncio.wait_for(plain.closed, 1)
    assert machine.broker._server.context.errors.closed["the credential was changed or deleted"] == 3


async def unknown_salt(machine: Machine, user: str) -> bytes:
    client = await connect(machine)
    await handshake(client, "SCRAM-SHA-512")
    return (await authenticate(client, ClientExchange(SHA_512, user, "x", "nonce").first)).auth_bytes.split(b",")[1]


@broker_test(**LISTENERS)
async def test_the_salt_of_an_unknown_user_is_as_lasting_as_that_of_a_user(machine: Machine) -> None:
    """Else a restart, or another broker of the cluster, would tell who exists."""
    before = await unknown_salt(machine, "nobody")
    assert before != await unknown_salt(machine, "somebody")
    for client in machine._clients:
        client.close()
    await machine.restart()
    assert await unknown_salt(machine, "nobody") == before


@broker_test(**LISTENERS)
async def test_scram_users_are_stored(machine: Machine) -> None:
    async def alter(name: str, password: str | None) -> None:
        await alter_user(machine, name, password)

    async def users() -> dict[str, list[int]]:
        client = await machine.client()
        request = DescribeUserScramCredentialsRequest(users=None)
        response = await client.request(request, 0, DescribeUserScramCredentialsResponse)
        client.close()
        return {each.user: [info.iterations for info in each.credential_infos] for each in response.results}

    assert await scram_login(machine, "zoë/..", "one") == FAILED
    await alter("zoë/..", "one")
    await alter("other", "x")
    assert await scram_login(machine, "zoë/..", "one") == 0
    await alter("zoë/..", "two")
    assert await scram_login(machine, "zoë/..", "one") == FAILED
    for client in machine._clients:
        client.close()
    await machine.restart()
    assert await users() == {"zoë/..": [4096], "other": [4096]}
    assert await scram_login(machine, "zoë/..", "two") == 0
    await alter("zoë/..", None)
    assert await scram_login(machine, "zoë/..", "two") == FAILED
    assert await users() == {"other": [4096]}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("provider") / "jwks.json"
    file.write_bytes(tokens.jwks(tokens.rsa_key()))
    return file


OAUTHBEARER = LISTENERS | {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sec.plain.sasl.jaas.config": "",
    "listener.name.sec.plain.connections.max.reauth.ms": "0",
    "sasl.oauthbearer.expected.issuer": tokens.ISSUER,
    "sasl.oauthbearer.expected.audience": tokens.AUDIENCE,
}


def token(machine: Machine, **claims: Any) -> str:
    return tokens.sign(tokens.claims(machine.now_ms // 1000, **claims))


async def token_login(machine: Machine, message: bytes, client: Client | None = None) -> SaslAuthenticateResponse:
    client = client or await connect(machine)
    assert await handshake(client, "OAUTHBEARER") == 0
    return await authenticate(client, message)


@broker_test(started=False, **OAUTHBEARER)
async def test_a_login_with_a_token_lasts_as_long_as_the_token(machine: Machine, provider: Path) -> None:
    await machine.start(sasl_oauthbearer_jwks_endpoint_url=f"file:{provider}")
    client = await connect(machine)
    first = tokens.first_message
    message = first(token(machine, exp=machine.now_ms // 1000 + 60), "alice", "traceId=1\1")
    response = await token_login(machine, message, client)
    assert (response.error_code, response.auth_bytes) == (0, b"")
    assert 59_000 < response.session_lifetime_ms <= 60_000
    assert [str(each.identity.principal) for each in connections(machine)] == ["User:alice"]
    await asyncio.sleep(50)
    assert (await client.request(METADATA, 12, MetadataResponse)).brokers
    # KIP-368: a new token in time, of the same user.
    assert (await token_login(machine, first(token(machine)), client)).session_lifetime_ms > 3_000_000
    await asyncio.sleep(50)
    assert (await client.request(METADATA, 12, MetadataResponse)).brokers
    response = await token_login(machine, first(token(machine, sub="bob")), client)
    assert response.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    await asyncio.wait_for(client.closed, 1)
    short = await connect(machine)
    await token_login(machine, first(token(machine, exp=machine.now_ms // 1000 + 5)), short)
    await asyncio.sleep(5)
    with pytest.raises(ConnectionResetError):
        await short.request(METADATA, 12, MetadataResponse)


@broker_test(started=False, **OAUTHBEARER)
async def test_a_token_with_many_groups(machine: Machine, provider: Path) -> None:
    await machine.start(sasl_oauthbearer_jwks_endpoint_url=f"file:{provider}")
    message = tokens.first_message(token(machine, groups=[f"group {number}" for number in range(20_000)]))
    assert len(message) > 300_000
    assert (await token_login(machine, message)).error_code == 0


@broker_test(started=False, **OAUTHBEARER)
async def test_a_token_that_is_refused(machine: Machine, provider: Path) -> None:
    """RFC 7628: the broker sends an error, and fails the login when the client has confirmed it."""
    await machine.start(sasl_oauthbearer_jwks_endpoint_url=f"file:{provider}")
    forged = tokens.first_message(token(machine)[:-9])
    for answer, message in (
        (b"\1", '{"status":"invalid_token"}'),
        (tokens.first_message(token(machine)), "Authentication failed during authentication due to invalid credentials "
         "with SASL mechanism OAUTHBEARER"),
    ):  # fmt: skip
        client = await connect(machine)
        response = await token_login(machine, forged, client)
        assert (response.error_code, response.auth_bytes) == (0, b'{"status":"invalid_token"}')
        response = await authenticate(client, answer)
        assert (response.error_code, response.error_message) == (FAILED, message)
        await asyncio.wait_for(client.closed, 1)
    other = await token_login(machine, tokens.first_message(token(machine), "bob"))
    assert other.error_message == (
        "Authentication failed: Client requested an authorization id (bob) that is different from the token's "
        "principal name (alice)"
    )
    # One that does not confirm it is reported, too.
    client = await connect(machine)
    await token_login(machine, forged, client)
    client.close()
    await asyncio.wait_for(client.closed, 1)
    await machine.until(lambda: machine.broker._server.context.errors.closed["authentication failed"] == 4)


@broker_test(started=False, **OAUTHBEARER)
async def test_tokens_are_verified_in_a_thread(machine: Machine, provider: Path) -> None:
    await machine.start(sasl_oauthbearer_jwks_endpoint_url=f"file:{provider}")
    machine.threads.held.add("verify")
    message = tokens.first_message(token(machine))
    # Also in raw tokens, after the first version of SaslHandshake.
    raw, gone, hasty = [await connect(machine) for _ in range(3)]
    await raw.request(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 0, SaslHandshakeResponse)
    received = bytearray()
    raw.data_received = received.extend  # type: ignore[method-assign]
    raw.transport.write(len(message).to_bytes(4) + message)
    for client in (gone, hasty):
        assert await handshake(client, "OAUTHBEARER") == 0
        client.send(SaslAuthenticateRequest(auth_bytes=message), 2, SaslAuthenticateResponse)
    await asyncio.sleep(1)
    gone.close()
    hasty.send(*((METADATA, 12, MetadataResponse)))
    await asyncio.sleep(1)
    machine.threads.release("verify")
    await asyncio.sleep(1)
    assert received == bytes(4)
    hasty.transport.abort()
    await machine.until(lambda: len(connections(machine)) == 1)
