"""Envelope: what another broker may forward to the controller."""

from typing import Any

import pytest

from kbroker.common import ANONYMOUS, KafkaError
from kbroker.interbroker.controller_channel import encode_principal
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.framing import encode_request_header
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
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
