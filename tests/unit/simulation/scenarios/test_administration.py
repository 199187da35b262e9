"""Topics are created, deleted and altered while the coordination service and the broker fail. Acknowledged changes are
applied, rejected changes are not, and changes with an unknown outcome are applied completely or not at all."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.interface import CoordinationError, NodeExists
from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.machine import PORT
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.sampling import third_of
from tests.unit.support.client import Client
from tests.unit.support.coordinated_broker import BROKER, CoordinatedBroker

SECONDS = 120.0
# The number of partitions of a topic and its retention.ms ("" for the default); None: the topic does not exist.
State = tuple[int, str] | None
FRESH = (1, "")
# Errors after which the outcome is unknown, as after the loss of the connection.
UNKNOWN = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}


class Admin:
    """Changes its own topics, one request at a time. `possible`: the states that each topic may have."""

    def __init__(self, cluster: CoordinatedBroker, name: str, random: Random) -> None:
        self.loop = HostLoop(cluster.loop, name, random)
        self.random = random
        self.possible: dict[str, set[State]] = {f"{name}-{number}": {None} for number in range(3)}
        self.counts: dict[ErrorCode | None, int] = {}
        self._client: Client | None = None

    async def run(self) -> None:
        while self.loop.time() < SECONDS:
            topic = self.random.choice(list(self.possible))
            await self.random.choice((self.create, self.delete, self.grow, self.alter))(topic)
            await asyncio.sleep(self.random.choice((0, 0.1, 1)))

    async def request(self, *arguments: Any) -> Any:
        """Return the response, or None without one."""
        try:
            if self._client is None or self._client.closed.done():
                _, self._client = await self.loop.create_connection(lambda: Client(self.loop), BROKER, PORT)
            return await asyncio.wait_for(self._client.request(*arguments), 15)
        except OSError:
            if self._client is not None:
                self._client.close()
            return None

    def record_response(
        self, topic: str, code: int | None, change: Callable[[State], State], refusals: dict[ErrorCode, Any]
    ) -> None:
        """Update the possible states of a topic after a response. `change`: returns the new state, or the same state if
        the change is not possible. `refusals`: by error, whether it is valid in a state."""
        before = self.possible[topic]
        error = None if code is None else ErrorCode(code)
        self.counts[error] = self.counts.get(error, 0) + 1
        if error is None or error in UNKNOWN:
            self.possible[topic] = before | {change(state) for state in before}
        elif error == ErrorCode.NONE:
            self.possible[topic] = {change(state) for state in before if change(state) != state}
        else:
            self.possible[topic] = {state for state in before if refusals[error](state)}
        assert self.possible[topic], f"{error!r} is not possible: {topic} was in one of {before}"

    async def create(self, topic: str) -> None:
        request = CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)])
        response = await self.request(request, 7, CreateTopicsResponse)
        code = response and response.topics[0].error_code
        refusals = {ErrorCode.TOPIC_ALREADY_EXISTS: lambda state: state is not None}
        self.record_response(topic, code, lambda state: state or FRESH, refusals)

    async def delete(self, topic: str) -> None:
        response = await self.request(DeleteTopicsRequest(topic_names=[topic]), 5, DeleteTopicsResponse)
        code = response and response.responses[0].error_code
        self.record_response(topic, code, lambda state: None, _ABSENT)

    async def grow(self, topic: str) -> None:
        count = self.random.randint(2, 5)
        topics = [CreatePartitionsTopic(name=topic, count=count, assignments=None)]
        response = await self.request(CreatePartitionsRequest(topics=topics), 3, CreatePartitionsResponse)
        code = response and response.results[0].error_code
        refusals = {**_ABSENT, ErrorCode.INVALID_PARTITIONS: lambda state: state is not None and state[0] >= count}
        self.record_response(topic, code, lambda state: state and (max(state[0], count), state[1]), refusals)

    async def alter(self, topic: str) -> None:
        # A new value each time, so that the request changes it.
        value = str(1000 + round(self.loop.time() * 1000))
        config = AlterableConfig(name="retention.ms", config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = await self.request(request, 1, IncrementalAlterConfigsResponse)
        code = response and response.responses[0].error_code
        self.record_response(topic, code, lambda state: state and (state[0], value), _ABSENT)


_ABSENT = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: lambda state: state is None}


async def keep_running(cluster: CoordinatedBroker) -> None:
    """Start the broker again whenever it ends."""
    while True:
        if cluster.machine.broker is None:
            try:
                await cluster.machine.start()
            except (CoordinationError, HostCrashed):
                await asyncio.sleep(0.5)
        await asyncio.sleep(0.1)


async def inject_faults(cluster: CoordinatedBroker, random: Random) -> None:
    service, machine = cluster.service, cluster.machine
    while cluster.loop.time() < SECONDS:
        await asyncio.sleep(random.uniform(0, 8))
        act, *arguments = random.choice(
            [
                (service.cut, BROKER),
                (lambda: service.cut(BROKER, requests=False),),
                (lambda: service.cut(BROKER, responses=False),),
                (service.stop,),
                (service.slow, (0, random.choice((0.1, 2)))),
                *[(service.expire, number) for number in service.sessions(BROKER)],
                (machine.kill,),
                (machine.power_off,),
                (machine.pause,),
                (cluster.loop.network.faults.reset_any,),
            ]
        )
        act(*arguments)
        await asyncio.sleep(random.choice((0.01, 1, 5, 8)))
        service.heal_all()
        if machine.paused:
            machine.resume()


def topic_states(cluster: CoordinatedBroker) -> dict[str, State]:
    """Return the state of each topic in the broker's metadata."""
    metadata, replicas = cluster.broker.services.metadata, cluster.broker.services.replicas
    states: dict[str, State] = {}
    for name, topic in metadata.topics.items():
        states[name] = len(topic.partitions), topic.configs.get("retention.ms", "")
        assert all(replicas.get(name, index) is not None for index in range(len(topic.partitions)))
    return states


async def check_topics(cluster: CoordinatedBroker, admins: list[Admin]) -> None:
    states = topic_states(cluster)
    assert sorted(states) == cluster.stored_topics
    for admin in admins:
        for topic, possible in admin.possible.items():
            assert states.get(topic) in possible, topic
    await cluster.machine.stop()
    try:
        await cluster.machine.start()
    except NodeExists:
        raise AssertionError("the broker's session outlived the broker") from None
    assert topic_states(cluster) == states
    await cluster.check_works()


def run(seed: int) -> dict[ErrorCode | None, int]:
    cluster = CoordinatedBroker(seed)
    admins = [Admin(cluster, name, Random(f"{seed}/{name}")) for name in ("one", "two")]

    async def run_all() -> None:
        await cluster.machine.start()
        running = asyncio.ensure_future(keep_running(cluster))
        await asyncio.gather(inject_faults(cluster, Random(seed)), *(admin.loop.run(admin.run()) for admin in admins))
        await asyncio.sleep(30)
        running.cancel()
        await check_topics(cluster, admins)

    try:
        cluster.loop.run_until_complete(asyncio.wait_for(run_all(), 1000))
    finally:
        cluster.discard()
        for admin in admins:
            admin.loop.discard()
        cluster.loop.close()
    counts: dict[ErrorCode | None, int] = {}
    for admin in admins:
        for error, count in admin.counts.items():
            counts[error] = counts.get(error, 0) + count
    return counts


@pytest.mark.parametrize("seed", third_of(range(6)))
def test_acknowledged_changes_are_applied(seed):
    counts = run(seed)
    assert counts[ErrorCode.NONE] > 20
    assert {*UNKNOWN, None} & set(counts)
