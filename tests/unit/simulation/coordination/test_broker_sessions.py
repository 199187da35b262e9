"""A broker on the simulated coordination service: when its session ends, when the service cannot be reached."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kbroker.metadata.store.coordination import NodeExists, SessionExpired, Unavailable
from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.simulation.runtime.machine import PORT, Machine
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
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.unit.support.client import Client, batch

SEEDS = range(5)
BROKER = "broker"
RETRIABLE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}


class Cluster:
    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.service = SimCoordination(self.loop, Random(f"{seed}/coordination"))
        configs = {"offsets.topic.num.partitions": "1", "node.id": "1"}
        self.machine = Machine(self.loop, seed, BROKER, configs, self.service)
        self.host = HostLoop(self.loop, "client", Random(seed))

    @property
    def broker(self) -> Any:
        assert self.machine.broker is not None
        return self.machine.broker

    @property
    def topics(self) -> list[str]:
        """As the broker knows them."""
        return sorted(self.broker.services.metadata.topics)

    @property
    def written_topics(self) -> list[str]:
        """As the service does."""
        return self.service.tree.children("/kbroker/topics")

    def client(self, work: Callable[[Client], Awaitable[Any]]) -> "asyncio.Future[Any]":
        async def whole() -> Any:
            _, client = await self.host.create_connection(lambda: Client(self.host), BROKER, PORT)
            try:
                return await work(client)
            finally:
                client.close()

        return self.host.run(whole())

    def create(self, name: str) -> "asyncio.Future[ErrorCode]":
        async def work(client: Client) -> ErrorCode:
            topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
            request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
            response = await client.request(request, 7, CreateTopicsResponse)
            return ErrorCode(response.topics[0].error_code)

        return self.client(work)

    def producer_id(self) -> "asyncio.Future[ErrorCode]":
        async def work(client: Client) -> ErrorCode:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            return ErrorCode((await client.request(request, 4, InitProducerIdResponse)).error_code)

        return self.client(work)

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it did not come to pass"
            await asyncio.sleep(0.001)

    async def work_as_usual(self) -> None:
        """Nothing that was unknown stays so, and everything can be done."""
        await self.until(lambda: self.topics == self.written_topics, 2)
        name = f"usual-{self.loop.elapsed_ns}"
        assert await self.create(name) == ErrorCode.NONE
        assert name in self.topics

        async def produce(client: Client) -> None:
            assert (await client.produce(name, batch(b"value"))).error_code == 0

        await self.client(produce)


def story(tell: Callable[[Cluster], Awaitable[None]]) -> Any:
    @pytest.mark.parametrize("seed", SEEDS)
    def test(seed: int) -> None:
        cluster = Cluster(seed)

        async def whole() -> None:
            await cluster.machine.start()
            await tell(cluster)

        try:
            cluster.loop.run_until_complete(asyncio.wait_for(whole(), 1000))
        finally:
            cluster.machine.discard()
            cluster.host.discard()
            cluster.loop.close()

    return test


@story
async def test_topics_outlive_the_broker(cluster):
    assert await cluster.create("a") == ErrorCode.NONE
    assert await cluster.create("a") == ErrorCode.TOPIC_ALREADY_EXISTS
    await cluster.machine.stop()
    assert cluster.service.sessions() == [], "it has closed its session"
    before = cluster.loop.time()
    await cluster.machine.start()
    assert cluster.loop.time() - before < 1
    assert cluster.topics == ["a"]
    await cluster.work_as_usual()


@story
async def test_a_killed_broker_waits_for_its_former_session_to_end(cluster):
    assert await cluster.create("a") == ErrorCode.NONE
    epoch = cluster.broker.services.metadata.brokers[1].epoch
    for end in (cluster.machine.kill, cluster.machine.power_off):
        end()
        before = cluster.loop.time()
        await cluster.machine.start()
        assert 3 <= cluster.loop.time() - before <= 7
        assert cluster.topics == ["a"]
    assert cluster.broker.services.metadata.brokers[1].epoch == epoch + 2
    await cluster.work_as_usual()


@story
async def test_a_second_broker_with_the_same_id_does_not_start(cluster):
    other = Machine(cluster.loop, "other", "other", {"node.id": "1"}, cluster.service)
    before = cluster.loop.time()
    with pytest.raises(NodeExists):
        await other.start()
    assert cluster.loop.time() - before < 30
    await cluster.work_as_usual()
    other.discard()


@story
async def test_a_broker_stops_when_its_session_is_over(cluster):
    assert await cluster.create("a") == ErrorCode.NONE
    broker, before = cluster.broker, cluster.loop.time()
    cluster.service.expire(cluster.service.sessions(BROKER)[0])
    await cluster.until(lambda: cluster.machine.broker is None)
    assert cluster.loop.time() - before < 5
    assert isinstance(broker.stopped.result(), SessionExpired)
    await cluster.machine.start()
    assert cluster.topics == ["a"]
    await cluster.work_as_usual()


@story
async def test_a_broker_that_was_paused_for_too_long_stops(cluster):
    cluster.machine.pause()
    await asyncio.sleep(10)
    broker = cluster.broker
    cluster.machine.resume()
    await cluster.until(lambda: cluster.machine.broker is None, 5)
    assert isinstance(broker.stopped.result(), SessionExpired)


@story
async def test_a_cut_that_is_longer_than_the_session(cluster):
    cluster.service.cut(BROKER)
    await asyncio.sleep(30)
    assert cluster.machine.broker is not None, "it does not know"
    cluster.service.heal(BROKER)
    await cluster.until(lambda: cluster.machine.broker is None, 5)
    await cluster.machine.start()
    await cluster.work_as_usual()


# Requests while the service cannot be reached. Only one direction is cut, or not for long, so the session lives.


@story
async def test_a_topic_whose_answer_is_lost(cluster):
    """It was made: the broker finds out, and so does the client that tries again."""
    cluster.service.cut(BROKER, requests=False)
    creating = cluster.create("a")
    assert await creating in RETRIABLE
    assert cluster.written_topics == ["a"]
    assert cluster.topics == []
    cluster.service.heal(BROKER)
    assert await cluster.create("a") == ErrorCode.TOPIC_ALREADY_EXISTS
    assert cluster.topics == ["a"]
    await cluster.work_as_usual()


@story
async def test_the_broker_follows_by_itself_what_was_made(cluster):
    cluster.service.cut(BROKER, requests=False)
    assert await cluster.create("a") in RETRIABLE
    await asyncio.sleep(100)
    cluster.service.heal(BROKER)
    await cluster.until(lambda: cluster.topics == ["a"], 10)
    await cluster.work_as_usual()


@story
async def test_a_request_of_several_changes_whose_first_answer_is_lost(cluster):
    cluster.service.cut(BROKER, requests=False)
    large = ",".join(f"{number}:1" for number in range(4_000))
    config = CreatableTopicConfig(name="leader.replication.throttled.replicas", value=large)
    names = [f"t{number:02}" for number in range(30)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config]) for name in names]

    async def work(client: Client) -> list[ErrorCode]:
        response = await client.request(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7, CreateTopicsResponse)
        return [ErrorCode(topic.error_code) for topic in response.topics]

    creating = cluster.client(work)
    await cluster.until(lambda: cluster.broker.services.controller._writer._image_may_be_stale)
    cluster.service.heal(BROKER)
    outcomes = await creating
    assert outcomes[0] in RETRIABLE
    assert outcomes[-1] == ErrorCode.NONE
    assert cluster.topics == names
    await cluster.work_as_usual()


@story
async def test_a_topic_whose_request_is_lost(cluster):
    cluster.service.cut(BROKER, responses=False)
    creating = cluster.create("a")
    await asyncio.sleep(4.5)
    cluster.service.heal(BROKER)
    assert await creating in {ErrorCode.NONE, *RETRIABLE}
    assert await cluster.create("a") in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    assert cluster.topics == ["a"]
    await cluster.work_as_usual()


@story
async def test_requests_of_every_kind_fail_in_time_with_errors_that_clients_retry(cluster):
    assert await cluster.create("a") == ErrorCode.NONE
    cluster.service.stop()

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

    before = cluster.loop.time()
    answers = await asyncio.gather(
        cluster.create("b"),
        *(cluster.client(work) for work in (delete, find_coordinator, metadata, produce)),
        cluster.producer_id(),
    )
    assert cluster.loop.time() - before < 20
    created, deleted, found, told, produced, initialised = map(ErrorCode, answers)
    assert {created, deleted} <= RETRIABLE
    assert found == initialised == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert told in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}
    assert produced == ErrorCode.NONE
    assert cluster.machine.broker is not None
    cluster.service.start()
    await asyncio.sleep(2)
    await cluster.work_as_usual()


@story
async def test_many_do_not_wait_one_after_the_other(cluster):
    cluster.service.stop()
    before = cluster.loop.time()
    creating = [cluster.create(f"t{number}") for number in range(50)]
    asking = [cluster.producer_id() for _ in range(50)]
    assert set(await asyncio.gather(*creating)) <= RETRIABLE
    assert set(await asyncio.gather(*asking)) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert cluster.loop.time() - before < 20
    cluster.service.start()
    await asyncio.sleep(2)
    assert await cluster.producer_id() == ErrorCode.NONE
    await cluster.work_as_usual()


@story
async def test_stopping_without_the_service(cluster):
    cluster.service.cut(BROKER)
    before = cluster.loop.time()
    await cluster.machine.stop()
    assert cluster.loop.time() - before < 10
    cluster.service.heal(BROKER)
    await cluster.machine.start()
    await cluster.work_as_usual()


@story
async def test_starting_without_the_service(cluster):
    await cluster.machine.stop()
    cluster.service.stop()
    before = cluster.loop.time()
    with pytest.raises(Unavailable):
        await cluster.machine.start()
    assert cluster.loop.time() - before < 10
    cluster.service.start()
    await cluster.machine.start()
    await cluster.work_as_usual()


@pytest.mark.parametrize("seed", range(40))
def test_a_start_in_which_anything_may_be_lost(seed):
    """The broker starts or says that it cannot; sooner or later it does, with all that there was."""
    cluster = Cluster(seed)
    random = Random(seed)

    async def disturb() -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 0.05))
            cluster.service.cut(BROKER, requests=random.random() < 0.5, responses=random.random() < 0.5)
            await asyncio.sleep(random.choice((0.05, 1, 5, 8)))
            cluster.service.heal(BROKER)

    async def whole() -> None:
        await cluster.machine.start()
        assert await cluster.create("a") == ErrorCode.NONE
        cluster.machine.kill()
        disturbing = asyncio.ensure_future(disturb())
        deadline = cluster.loop.time() + 60
        while cluster.loop.time() < deadline and cluster.machine.broker is None:
            try:
                await cluster.machine.start()
            except (Unavailable, SessionExpired):
                await asyncio.sleep(1)
        disturbing.cancel()
        cluster.service.heal_all()
        if cluster.machine.broker is None:
            await cluster.machine.start()
        await asyncio.sleep(10)
        if cluster.machine.broker is None:
            await cluster.machine.start()
        assert cluster.topics == ["a"]
        await cluster.work_as_usual()

    cluster.loop.run_until_complete(asyncio.wait_for(whole(), 1000))
    cluster.machine.discard()
    cluster.host.discard()
    cluster.loop.close()
