"""A broker on the simulated coordination service, when its session ends or when the service is unreachable."""

import asyncio
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from kbroker.coordination.interface import NodeExists, SessionExpired, Unavailable
from kbroker.replica.assigned_partitions import AssignedPartitions
from kbroker.simulation.runtime.machine import Machine
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.unit.support.client import Client, batch
from tests.unit.support.coordinated_broker import BROKER, CoordinatedBroker
from tests.unit.support.simulated_hosts import simulated

RETRIABLE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}

broker_test = simulated(CoordinatedBroker, range(5))


@broker_test
async def test_topics_survive_a_restart(s):
    assert await s.create("a") == ErrorCode.NONE
    assert await s.create("a") == ErrorCode.TOPIC_ALREADY_EXISTS
    await s.machine.stop()
    assert s.service.sessions() == [], "it has closed its session"
    before = s.loop.time()
    await s.machine.start()
    assert s.loop.time() - before < 1
    assert s.topics == ["a"]
    await s.check_works()


@broker_test
async def test_a_killed_broker_waits_for_its_former_session_to_expire(s):
    assert await s.create("a") == ErrorCode.NONE
    epoch = s.broker.services.metadata.brokers[1].epoch
    for crash in (s.machine.kill, s.machine.power_off):
        crash()
        before = s.loop.time()
        await s.machine.start()
        assert 3 <= s.loop.time() - before <= 7
        assert s.topics == ["a"]
    assert s.broker.services.metadata.brokers[1].epoch == epoch + 2
    await s.check_works()


@broker_test
async def test_a_broker_whose_session_expires_while_it_waits_for_its_former_one_continues_in_another(s):
    """The service may have been restored from an older copy meanwhile, and other brokers wait 10 s for this one."""
    s.machine.kill()
    before = s.loop.time()
    starting = asyncio.create_task(s.machine.start())
    await s.until(lambda: len(s.service.sessions(BROKER)) == 2, 2)
    await asyncio.sleep(1)
    former, current = s.service.sessions(BROKER)
    s.service.expire(current)
    await s.until(lambda: len(s.service.sessions(BROKER)) == 2, 3)
    assert s.service.sessions(BROKER)[0] == former
    await starting
    assert s.loop.time() - before <= 8
    await s.check_works()


@broker_test
async def test_a_second_broker_with_the_same_id_does_not_start(s):
    other = Machine(s.loop, "other", "other", {"node.id": "1"}, s.service)
    before = s.loop.time()
    with pytest.raises(NodeExists):
        await other.start()
    assert s.loop.time() - before < 30
    await s.check_works()
    other.discard()


# The end of the session.


async def check_joins_again(s: CoordinatedBroker, former_epoch: int) -> None:
    """Check that the broker joins the cluster again, in the same process, when it learns that its session expired."""
    broker = s.broker
    await s.until(lambda: broker.services.metadata.brokers[1].epoch > former_epoch, 15)
    await s.until(lambda: s.service.sessions(BROKER), 5)
    assert s.machine.broker is broker
    await s.check_works()


def epoch_of(s: CoordinatedBroker) -> int:
    return int(s.broker.services.metadata.brokers[1].epoch)


@broker_test
async def test_a_broker_joins_again_when_its_session_expires(s):
    assert await s.create("a") == ErrorCode.NONE
    epoch = epoch_of(s)
    s.service.expire(s.service.sessions(BROKER)[0])
    await check_joins_again(s, epoch)
    assert "a" in s.topics


@broker_test
async def test_a_broker_that_is_paused_for_longer_than_its_session_joins_again(s):
    epoch = epoch_of(s)
    s.machine.pause()
    await asyncio.sleep(10)
    s.machine.resume()
    await check_joins_again(s, epoch)


@broker_test
async def test_a_broker_that_is_cut_off_for_longer_than_its_session_joins_again_when_it_reconnects(s):
    epoch = epoch_of(s)
    s.service.cut(BROKER)
    await asyncio.sleep(30)
    assert s.machine.broker is not None
    s.service.heal(BROKER)
    await check_joins_again(s, epoch)


# Requests while the service is unreachable. The cut is one-way or short, so the session survives.


@broker_test
async def test_create_topics_whose_response_from_the_service_is_lost(s):
    """The topic exists: the broker learns of it, and so does a client that retries."""
    s.service.cut(BROKER, requests=False)
    assert await s.create("a") in RETRIABLE
    assert (s.stored_topics, s.topics) == (["a"], [])
    s.service.heal(BROKER)
    assert await s.create("a") == ErrorCode.TOPIC_ALREADY_EXISTS
    assert s.topics == ["a"]
    await s.check_works()


@broker_test
async def test_the_broker_learns_of_the_topic_without_a_retry(s):
    s.service.cut(BROKER, requests=False)
    assert await s.create("a") in RETRIABLE
    await asyncio.sleep(100)
    s.service.heal(BROKER)
    await s.until(lambda: s.topics == ["a"], 10)
    await s.check_works()


@broker_test
async def test_create_topics_in_several_writes_whose_first_response_is_lost(s):
    s.service.cut(BROKER, requests=False)
    large = ",".join(f"{number}:1" for number in range(4_000))
    config = CreatableTopicConfig(name="leader.replication.throttled.replicas", value=large)
    names = [f"t{number:02}" for number in range(30)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config]) for name in names]

    async def create(client: Client) -> list[ErrorCode]:
        response = await client.request(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7, CreateTopicsResponse)
        return [ErrorCode(topic.error_code) for topic in response.topics]

    creating = s.client(create)
    await s.until(lambda: s.broker.services.controller._writer._image_may_be_stale)
    s.service.heal(BROKER)
    codes = await creating
    assert codes[0] in RETRIABLE
    assert codes[-1] == ErrorCode.NONE
    assert s.topics == names
    await s.check_works()


@broker_test
async def test_create_topics_whose_request_to_the_service_is_lost(s):
    s.service.cut(BROKER, responses=False)
    creating = s.create("a")
    await asyncio.sleep(4.5)
    s.service.heal(BROKER)
    assert await creating in {ErrorCode.NONE, *RETRIABLE}
    assert await s.create("a") in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    assert s.topics == ["a"]
    await s.check_works()


@broker_test
async def test_requests_without_the_service_fail_in_time_with_retriable_errors(s):
    assert await s.create("a") == ErrorCode.NONE
    s.service.stop()

    async def delete(client: Client) -> int:
        request = DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000)
        response = await client.request(request, 5, DeleteTopicsResponse)
        return int(response.responses[0].error_code)

    async def find_coordinator(client: Client) -> int:
        request = FindCoordinatorRequest(coordinator_keys=["group"])
        response = await client.request(request, 4, FindCoordinatorResponse)
        return int(response.coordinators[0].error_code)

    async def metadata(client: Client) -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        response = await client.request(request, 8, MetadataResponse)
        return int(response.topics[0].error_code)

    async def produce(client: Client) -> int:
        return int((await client.produce("a", batch(b"value"))).error_code)

    before = s.loop.time()
    singles = asyncio.gather(*(s.client(request) for request in (delete, find_coordinator, metadata, produce)))
    creating = [s.create(f"t{number}") for number in range(50)]
    initializing = [s.producer_id() for _ in range(50)]
    deleted, coordinator, described, produced = await singles
    assert {deleted, *await asyncio.gather(*creating)} <= RETRIABLE
    assert coordinator == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(await asyncio.gather(*initializing)) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert described in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}
    assert produced == ErrorCode.NONE
    assert s.loop.time() - before < 20, "they do not wait for each other"
    assert s.machine.broker is not None
    # The session knows that it is not connected, so nothing waits for it once more.
    await asyncio.sleep(5)
    before = s.loop.time()
    assert await s.create("late") in RETRIABLE
    assert s.loop.time() - before < 0.5
    s.service.start()
    await asyncio.sleep(2)
    assert await s.create("late") == ErrorCode.NONE
    assert await s.producer_id() == ErrorCode.NONE
    await s.check_works()


# Start and stop while the service is unreachable.


@broker_test
async def test_stop_and_start_without_the_service(s):
    s.service.cut(BROKER)
    before = s.loop.time()
    await s.machine.stop()
    assert s.loop.time() - before < 10
    s.service.heal(BROKER)
    await s.machine.start()
    await s.check_works()
    await s.machine.stop()
    s.service.stop()
    before = s.loop.time()
    with pytest.raises(Unavailable):
        await s.machine.start()
    assert s.loop.time() - before < 10
    s.service.start()
    await s.machine.start()
    await s.check_works()


@simulated(CoordinatedBroker, range(40))
async def test_a_start_during_which_any_message_may_be_lost(s):
    """The broker starts or fails to; in the end it starts, with all topics."""
    random = Random(s.seed)

    async def disturb() -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 0.05))
            s.service.cut(BROKER, requests=random.random() < 0.5, responses=random.random() < 0.5)
            await asyncio.sleep(random.choice((0.05, 1, 5, 8)))
            s.service.heal(BROKER)

    assert await s.create("a") == ErrorCode.NONE
    s.machine.kill()
    disturbing = asyncio.ensure_future(disturb())
    deadline = s.loop.time() + 60
    while s.loop.time() < deadline and s.machine.broker is None:
        try:
            await s.machine.start()
        except (Unavailable, SessionExpired):
            await asyncio.sleep(1)
    disturbing.cancel()
    s.service.heal_all()
    for _ in range(2):
        if s.machine.broker is None:
            await s.machine.start()
        await asyncio.sleep(10)
    assert s.topics == ["a"]
    await s.check_works()


# The start.


@broker_test
async def test_a_broker_whose_session_expires_while_it_opens_its_logs_joins_in_another_one(s):
    assert await s.create("a") == ErrorCode.NONE
    await s.machine.stop()
    open_logs = AssignedPartitions.start

    async def expire_and_open_logs(self: AssignedPartitions, *deleted_topics: Any) -> None:
        s.service.expire(s.service.sessions(BROKER)[0])
        await asyncio.sleep(10)
        await open_logs(self, *deleted_topics)

    with patch.object(AssignedPartitions, "start", expire_and_open_logs):
        await s.machine.start()
    assert s.topics == ["a"]
    await s.check_works()


@broker_test
async def test_a_broker_whose_session_expires_while_it_registers_joins_in_another_one(s):
    assert await s.create("a") == ErrorCode.NONE
    epoch = epoch_of(s)
    await s.machine.stop()
    starting = asyncio.ensure_future(s.machine.start())
    await s.until(lambda: s.service.tree.version("/kbroker/brokers/1") is not None, 5)
    s.service.expire(s.service.sessions(BROKER)[0])
    before = s.loop.time()
    await starting
    assert s.loop.time() - before < 20
    assert epoch_of(s) == epoch + 2
    await s.check_works()


@broker_test
async def test_a_start_survives_a_short_outage_of_the_service(s):
    assert await s.create("a") == ErrorCode.NONE
    await s.machine.stop()
    open_logs = AssignedPartitions.start

    async def cut_and_open_logs(self: AssignedPartitions, *deleted_topics: Any) -> None:
        s.service.cut(BROKER)
        s.loop.call_later(20, s.service.heal, BROKER)
        await open_logs(self, *deleted_topics)

    with patch.object(AssignedPartitions, "start", cut_and_open_logs):
        await s.machine.start()
    await s.check_works()
