"""A broker with a SASL listener, in virtual time: what is served before a login, after it, and when it has expired."""

import asyncio
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
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from protocol.scram import ClientExchange, ScramMechanism, salted_password
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import HOST, PORT, Machine, broker_test

SECURE_PORT = 9094
SHA_512 = ScramMechanism.SCRAM_SHA_512
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
    large.transport.write(b"\0\1\0\1")
    await asyncio.wait_for(large.closed, 1)
    assert not idle.closed.done()
    http = await connect(machine)
    http.transport.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(http.closed, 1)
    await asyncio.wait_for(asyncio.gather(idle.closed, slow.closed), 11)
    assert not connections(machine)
    listener = machine.broker._server.listeners["SEC"]
    assert (listener.accepted, listener.connections) == (4, 0)


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


async def scram_login(machine: Machine, user: str, password: str) -> int:
    client = await connect(machine)
    assert await handshake(client, "SCRAM-SHA-512") == 0
    exchange = ClientExchange(SHA_512, user, password, "nonce")
    response = await authenticate(client, exchange.first)
    response = await authenticate(client, exchange.final(response.auth_bytes))
    if not response.error_code:
        exchange.verify(response.auth_bytes)
    return response.error_code


@broker_test(**LISTENERS)
async def test_scram_users_are_stored(machine: Machine) -> None:
    async def alter(name: str, password: str | None) -> None:
        row = {"name": name, "mechanism": SHA_512}
        request = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(**row)])
        if password is not None:
            salted = salted_password(SHA_512, password, b"salt", 4096)
            upsertion = ScramCredentialUpsertion(**row, iterations=4096, salt=b"salt", salted_password=salted)
            request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
        client = await machine.client()
        response = await client.request(request, 0, AlterUserScramCredentialsResponse)
        assert [(each.user, each.error_code) for each in response.results] == [(name, 0)]
        client.close()

    async def users() -> dict[str, list[int]]:
        client = await machine.client()
        request = DescribeUserScramCredentialsRequest(users=None)
        response = await client.request(request, 0, DescribeUserScramCredentialsResponse)
        client.close()
        return {each.user: [info.iterations for info in each.credential_infos] for each in response.results}

    failed = ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await scram_login(machine, "zoë/..", "one") == failed
    await alter("zoë/..", "one")
    await alter("other", "x")
    assert await scram_login(machine, "zoë/..", "one") == 0
    await alter("zoë/..", "two")
    assert await scram_login(machine, "zoë/..", "one") == failed
    for client in machine._clients:
        client.close()
    await machine.restart()
    assert await users() == {"zoë/..": [4096], "other": [4096]}
    assert await scram_login(machine, "zoë/..", "two") == 0
    await alter("zoë/..", None)
    assert await scram_login(machine, "zoë/..", "two") == failed
    assert await users() == {"other": [4096]}
