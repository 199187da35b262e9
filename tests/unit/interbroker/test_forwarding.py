"""Requests for the controller that clients send to other brokers (KIP-590)."""

import asyncio
from typing import Any

import pytest

from kbroker.common import ANONYMOUS
from kbroker.config.config_def import ConfigResourceType
from kbroker.interbroker.peers import PeerUnavailable
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.unit.support.peer_brokers import ForwardingBroker, ForwardingBrokers
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)
TOPIC, BROKER, LOGGER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER


def create(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=4, replication_factor=3) for name in names]
    )


def codes(response: CreateTopicsResponse) -> list[int]:
    return [topic.error_code for topic in response.topics]


def run(broker: ForwardingBroker, request: Any, version: int = 7) -> "asyncio.Future[Any]":
    return broker.loop.run(broker.handle(request, version))


@simulated(ForwardingBrokers, SEEDS)
async def test_any_broker_creates_topics(s: ForwardingBrokers) -> None:
    responses = await asyncio.gather(
        *(run(broker, create(f"{broker.id}-a", f"{broker.id}-b")) for broker in (s.one, s.two, s.three))
    )
    assert [codes(response) for response in responses] == [[0, 0]] * 3
    assert [response.topics[0].num_partitions for response in responses] == [4] * 3
    assert sorted(s.one.controller.created) == ["1-a", "1-b", "2-a", "2-b", "3-a", "3-b"]


@simulated(ForwardingBrokers, SEEDS)
async def test_errors_are_the_controllers(s: ForwardingBrokers) -> None:
    await run(s.two, create("a"))
    response = await run(s.three, create("a", "b"))
    assert codes(response) == [ErrorCode.TOPIC_ALREADY_EXISTS, 0]
    assert response.topics[0].error_message == "exists"


@simulated(ForwardingBrokers, SEEDS)
async def test_a_large_request_is_forwarded(s: ForwardingBrokers) -> None:
    names = [f"topic-{number}" for number in range(700)]
    assert codes(await run(s.two, create(*names))) == [0] * 700
    assert s.one.controller.created == names


@simulated(ForwardingBrokers, SEEDS)
async def test_several_requests_are_forwarded_at_a_time(s: ForwardingBrokers) -> None:
    release = s.loop.create_future()
    waiting: list[None] = []

    async def on_create() -> None:
        waiting.append(None)
        while not release.done():
            await asyncio.sleep(0.01)

    s.one.controller.on_create = on_create  # type: ignore[method-assign]
    requests = [run(s.two, create(f"t{number}")) for number in range(5)]
    await s.until(lambda: len(waiting) == 5)
    release.set_result(None)
    assert [codes(response) for response in await asyncio.gather(*requests)] == [[0]] * 5


@simulated(ForwardingBrokers, SEEDS)
async def test_a_new_controller_is_found(s: ForwardingBrokers) -> None:
    # Broker 2 still believes in broker 1, which knows better.
    s.elect(s.three, known_to=[s.one, s.three])
    request = run(s.two, create("a"))
    await asyncio.sleep(0.5)
    assert not request.done()
    s.elect(s.three)
    assert codes(await request) == [0]
    assert s.three.controller.created == ["a"]


@simulated(ForwardingBrokers, SEEDS)
async def test_a_controller_that_loses_its_office_forwards(s: ForwardingBrokers) -> None:
    s.elect(s.two, known_to=[s.two])
    request = run(s.one, create("a"))
    await asyncio.sleep(0.2)
    s.elect(s.two)
    assert codes(await request) == [0]
    assert s.two.controller.created == ["a"]


@simulated(ForwardingBrokers, SEEDS)
async def test_a_controller_that_loses_its_office_while_it_decides_forwards(s: ForwardingBrokers) -> None:
    async def lose_office() -> None:
        s.elect(s.two)

    s.one.controller.on_create = lose_office  # type: ignore[method-assign]
    assert codes(await run(s.one, create("a"))) == [0]
    # Broker 3 has forwarded to broker 1, which was not the controller any more when it decided.
    s.elect(s.one)
    assert codes(await run(s.three, create("b"))) == [0]
    assert s.two.controller.created == ["a", "b"]


@simulated(ForwardingBrokers, SEEDS)
async def test_requests_wait_for_an_election(s: ForwardingBrokers) -> None:
    s.kill(s.one)
    request = run(s.two, create("a"))
    await asyncio.sleep(2)
    assert not request.done()
    s.elect(s.two, known_to=[s.two, s.three])
    # Broker 2 itself is the controller now.
    assert codes(await request) == [0]
    assert s.two.controller.created == ["a"]


@simulated(ForwardingBrokers, SEEDS)
async def test_a_paused_controller_is_left_when_another_is_elected(s: ForwardingBrokers) -> None:
    await run(s.two, create("a"))
    s.one.loop.pause()
    request = run(s.two, create("b"))
    await asyncio.sleep(1)
    assert not request.done()
    before = s.loop.time()
    s.elect(s.three, known_to=[s.two, s.three])
    assert codes(await request) == [0]
    assert s.loop.time() - before < 0.2
    assert s.three.controller.created == ["b"]


@simulated(ForwardingBrokers, SEEDS)
async def test_request_timeout_ms_bounds_the_wait(s: ForwardingBrokers) -> None:
    s.kill(s.one)
    before = s.loop.time()
    response = await run(s.two, create("a", "b"))
    assert codes(response) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert [topic.name for topic in response.topics] == ["a", "b"]
    assert 4 < s.loop.time() - before < 6


# Configs.


def alter(*resources: tuple[int, str, str]) -> IncrementalAlterConfigsRequest:
    """Return a request that sets one config of each resource, (type, name, config)."""
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind, resource_name=name, configs=[AlterableConfig(name=config, value="1000")]
            )
            for kind, name, config in resources
        ]
    )


@simulated(ForwardingBrokers, SEEDS)
async def test_configs_of_topics_and_of_this_broker_are_forwarded(s: ForwardingBrokers) -> None:
    request = alter(
        (TOPIC, "t", "retention.ms"),
        (BROKER, "2", "max.connections"),
        (BROKER, "3", "max.connections"),
        (LOGGER, "3", "kbroker"),
        (BROKER, "", "max.connections"),
        (BROKER, "2x", "max.connections"),
    )
    response = await run(s.two, request, 1)
    assert [(row.resource_type, row.resource_name) for row in response.responses] == [
        (row.resource_type, row.resource_name) for row in request.resources
    ]
    assert [row.error_code for row in response.responses] == [
        0, 0, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    assert s.one.controller.altered == [(TOPIC, "t"), (BROKER, "2"), (BROKER, "")]


@simulated(ForwardingBrokers, SEEDS)
async def test_what_is_invalid_for_this_broker_is_not_forwarded(s: ForwardingBrokers) -> None:
    response = await run(s.two, alter((BROKER, "2", "node.id")), 1)
    assert [row.error_code for row in response.responses] == [ErrorCode.INVALID_REQUEST]
    assert s.one.controller.altered == []


# Topics that are created automatically.


@simulated(ForwardingBrokers, SEEDS)
async def test_topics_are_created_automatically_through_any_broker(s: ForwardingBrokers) -> None:
    topics = await asyncio.gather(
        *(
            broker.loop.run(broker.auto_topic_creation.auto_create_topic("auto", (ANONYMOUS, "10.0.0.7")))
            for broker in (s.two, s.three)
        )
    )
    # When the call returns, this broker's image has the topic.
    assert [topic.topic_id for topic in topics] == [s.one.image.topics["auto"].topic_id] * 2
    assert s.one.controller.created == ["auto"]


@simulated(ForwardingBrokers, SEEDS)
async def test_internal_topics_are_created_through_any_broker(s: ForwardingBrokers) -> None:
    await s.two.loop.run(s.two.auto_topic_creation.ensure_internal_topic("__consumer_offsets"))
    await s.three.loop.run(s.three.auto_topic_creation.auto_create_topic("__consumer_offsets", (ANONYMOUS, "10.0.0.7")))
    assert s.one.controller.created == ["__consumer_offsets"]


@simulated(ForwardingBrokers, SEEDS)
async def test_automatic_creation_fails_without_a_controller(s: ForwardingBrokers) -> None:
    s.kill(s.one)
    with pytest.raises(PeerUnavailable, match="REQUEST_TIMED_OUT"):
        await s.two.loop.run(s.two.auto_topic_creation.auto_create_topic("auto", (ANONYMOUS, "10.0.0.7")))
