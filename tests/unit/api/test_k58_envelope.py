"""Envelope: what another broker may forward to the controller."""

from dataclasses import replace
from typing import Any

import pytest

from kbroker.api import k58_envelope
from kbroker.api.context import ApiHandler, RequestContext
from kbroker.api.dispatch import load_handler
from kbroker.authorization.acl import Acl, Operation, PatternType, PermissionType, ResourceType, canonical_host
from kbroker.authorization.authorizer import Authorizer
from kbroker.authorization.rule_set import RuleSet
from kbroker.common import ANONYMOUS, KafkaError, Principal
from kbroker.interbroker.controller_channel import BROKER_PRINCIPAL, encode_principal
from kbroker.quotas.entities import QuotaEntity
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import encode_request_header
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k58_envelope import EnvelopeRequest
from protocol.schema.codec import encode
from tests.unit.support.peer_brokers import ForwardingBrokers
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=4, replication_factor=3)])


# Apache Kafka's serialization of User:ANONYMOUS.
PRINCIPAL = b"\0\0" + b"\x05User" + b"\x0aANONYMOUS" + b"\0" + b"\0"


async def envelope_error(
    s: ForwardingBrokers, data: bytes, address: bytes = b"\x0a\0\0\7", principal: bytes | None = PRINCIPAL
) -> int:
    request = EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=address)
    response: Any = await s.two.loop.run(s.two.peers.request(1, request, 0, timeout_ms=1000))
    return int(response.error_code)


@simulated(ForwardingBrokers, SEEDS)
async def test_an_envelope_has_a_request_for_the_controller(s: ForwardingBrokers) -> None:
    body = encode(create("a"), 7)
    header = encode_request_header(ApiKey.CREATE_TOPICS, 7, 5, "app")
    assert await envelope_error(s, b"") == ErrorCode.INVALID_REQUEST
    assert await envelope_error(s, header + body[:-3]) == ErrorCode.INVALID_REQUEST
    assert await envelope_error(s, header + body, address=b"12345") == ErrorCode.INVALID_REQUEST
    fetch = encode_request_header(ApiKey.FETCH, 17, 5, "app")
    assert await envelope_error(s, fetch + body) == ErrorCode.INVALID_REQUEST
    for principal in (None, b"", PRINCIPAL[:-3], b"\0\1" + PRINCIPAL[2:]):
        error = await envelope_error(s, header + body, principal=principal)
        assert error == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    assert encode_principal(ANONYMOUS) == PRINCIPAL
    nested = encode_request_header(ApiKey.ENVELOPE, 0, 5, "app")
    assert await envelope_error(s, nested + body) == ErrorCode.INVALID_REQUEST
    newer = encode_request_header(ApiKey.CREATE_TOPICS, 99, 5, "app")
    assert await envelope_error(s, newer + body) == ErrorCode.UNSUPPORTED_VERSION
    assert s.one.controller.created == []
    assert await envelope_error(s, header + body) == 0
    assert s.one.controller.created == ["a"]


@simulated(ForwardingBrokers, SEEDS)
async def test_an_envelope_to_another_broker_is_refused(s: ForwardingBrokers) -> None:
    header = encode_request_header(ApiKey.CREATE_TOPICS, 7, 5, "app")
    s.elect(s.three)
    assert await envelope_error(s, header + encode(create("a"), 7)) == ErrorCode.NOT_CONTROLLER


@simulated(ForwardingBrokers, SEEDS)
async def test_an_error_between_brokers_is_unexpected_for_the_client(s: ForwardingBrokers) -> None:
    with pytest.raises(KafkaError, match=r"UNKNOWN_SERVER_ERROR.*INVALID_REQUEST"):
        await s.two.loop.run(s.two.channel.forward(EnvelopeRequest(), 0, "app", ANONYMOUS, "10.0.0.7", 1000))


def test_what_a_request_may_do_is_decided_by_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that forwards a client's request may do everything; the client may not."""
    seen: list[tuple[Any, ...]] = []

    def handle(services: Any, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        access = context.access(services)
        assert access is not None
        assert access is context.access(services), "looked up once"
        allowed = [name for name in ("a", "b") if access.allows(Operation.READ, ResourceType.TOPIC, name)]
        seen.append(
            (str(context.principal), canonical_host(context.host), context.peer_broker, context.forwarded_by, allowed)
        )
        return CreateTopicsResponse(topics=[])

    def handler_of(key: int, version: int, **_: object) -> ApiHandler:
        return replace(load_handler(ApiKey(key), version, forwards=False), handle=handle)

    monkeypatch.setattr(k58_envelope, "handler_of", handler_of)
    rule = Acl(
        ResourceType.TOPIC, PatternType.LITERAL, "a", "User:alice", "10.0.0.7", Operation.READ, PermissionType.ALLOW
    )  # fmt: skip

    @simulated(ForwardingBrokers, SEEDS)
    async def story(s: ForwardingBrokers) -> None:
        s.one.services.authorizer = Authorizer(RuleSet([rule]), [], False)
        for principal, host in (
            (Principal("User", "alice"), "10.0.0.7"),
            (Principal("User", "alice"), "::ffff:10.0.0.7"),
            (Principal("User", "alice"), "10.0.0.8"),
            (ANONYMOUS, "10.0.0.7"),
            (Principal("Broker", "2"), "10.0.0.7"),
            (BROKER_PRINCIPAL, ""),
        ):
            await s.two.loop.run(s.two.channel.forward(create("t"), 7, None, principal, host, 1000))
        two = (2, s.two.identity.broker_epoch)
        assert seen == [
            ("User:alice", "10.0.0.7", None, two, ["a"]),
            ("User:alice", "10.0.0.7", None, two, ["a"]),
            ("User:alice", "10.0.0.8", None, two, []),
            ("User:ANONYMOUS", "10.0.0.7", None, two, []),
            ("Broker:2", "10.0.0.7", None, two, []),
            ("User:ANONYMOUS", "?", two, None, ["a", "b"]),
        ]
        seen.clear()

    story(0)


@simulated(ForwardingBrokers, SEEDS)
async def test_the_controllers_time_counts_in_the_quota_of_the_client(s: ForwardingBrokers) -> None:
    async def forwarded(name: str, principal: Principal) -> int:
        response: Any = await s.two.loop.run(s.two.channel.forward(create(name), 7, "app", principal, "10.0.0.7", 1000))
        assert response.topics[0].error_code == 0
        return int(response.throttle_time_ms)

    alice, quotas = Principal("User", "alice"), s.one.services.quotas
    s.one.image.client_quotas[QuotaEntity("alice")] = {"request_percentage": 50}
    quotas.update()
    assert await forwarded("a", alice) == 0
    buckets = quotas.buckets_of("alice", "app", 0)
    assert buckets is not None
    assert buckets.request is not None
    # Former requests have taken 0.2 s more than a burst, which half of the time repays in 0.4 s.
    now_ms = s.one.environment.clock.mono_ms()
    buckets.request.take(buckets.request.available(now_ms) + 0.2, now_ms)
    assert 350 < await forwarded("b", alice) <= 401
    assert [await forwarded("c", ANONYMOUS), await forwarded("d", BROKER_PRINCIPAL)] == [0, 0]
    assert quotas.throttled["request_percentage"][0] == 1


def test_a_malformed_request_that_only_its_handler_recognizes_does_not_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handle(services: Any, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        raise MalformedError("an unknown element")

    def handler_of(key: int, version: int, **_: object) -> ApiHandler:
        return replace(load_handler(ApiKey(key), version, forwards=False), handle=handle)

    monkeypatch.setattr(k58_envelope, "handler_of", handler_of)

    @simulated(ForwardingBrokers, SEEDS)
    async def story(s: ForwardingBrokers) -> None:
        header = encode_request_header(ApiKey.CREATE_TOPICS, 7, 5, "app")
        assert await envelope_error(s, header + encode(create("a"), 7)) == ErrorCode.INVALID_REQUEST

    story(0)
