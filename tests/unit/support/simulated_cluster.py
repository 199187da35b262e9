"""Whole brokers on simulated hosts, with a simulated coordination service: a cluster for stories."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from kbroker.broker import Broker
from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.replica.partition import Partition
from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.runtime.machine import PORT, Machine
from tests.unit.support.client import Client
from tests.unit.support.simulated_hosts import SimulatedHosts

CONFIGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "3",
}


class SimulatedCluster(SimulatedHosts):
    """Brokers 1, 2 and 3 on the hosts b1, b2 and b3."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.service = SimCoordination(self.loop, Random(f"{seed}/coordination"))
        self.machines = {
            node_id: Machine(self.loop, seed, f"b{node_id}", self.configs(node_id), self.service)
            for node_id in (1, 2, 3)
        }

    def configs(self, node_id: int) -> dict[str, str]:
        return CONFIGS | {"node.id": str(node_id), "kbroker.inter.broker.listener": f"b{node_id}:9192"}

    async def start(self) -> None:
        for machine in self.machines.values():
            await machine.start()

    def discard(self) -> None:
        for machine in self.machines.values():
            machine.discard()
        super().discard()

    def broker(self, node_id: int) -> Broker:
        broker = self.machines[node_id].broker
        assert broker is not None
        return broker

    def replica(self, node_id: int, topic: str = "t", index: int = 0) -> Partition:
        partition = self.broker(node_id).services.replicas.get(topic, index)
        assert partition is not None
        return partition

    def registration(self, node_id: int, topic: str = "t", index: int = 0) -> PartitionRegistration:
        """Return a partition as a broker's image has it."""
        partition = self.broker(node_id).services.metadata.partition(topic, index)
        assert partition is not None
        return partition

    @property
    def controller(self) -> int:
        (elected,) = (
            node_id
            for node_id, machine in self.machines.items()
            if machine.services is not None and machine.services.controller.is_elected
        )
        return elected

    async def create(self, *assignments: Sequence[int], name: str = "t", **configs: str) -> None:
        """Create a topic, and wait until all brokers have opened its logs."""
        overrides = [(key.replace("_", "."), value) for key, value in configs.items()]
        topic = NewTopic(name, assignments=[(n, list(row)) for n, row in enumerate(assignments)], configs=overrides)
        controller = self.machines[self.controller]
        assert controller.services is not None
        (result,) = await controller.loop.run(controller.services.controller.topics.create_topics([topic], False))
        assert result.error is None, result.error
        for index, replicas in enumerate(assignments):
            for node_id in replicas:
                await self.until(lambda node_id=node_id, index=index: self._is_open(node_id, name, index), 10)

    async def alter_topic(self, name: str, configs: dict[str, str]) -> None:
        controller = self.machines[self.controller]
        assert controller.services is not None
        altering = controller.services.controller.alter_configs(ConfigResourceType.TOPIC, name, configs)
        await controller.loop.run(altering)

    async def reassign(self, target: Sequence[int] | None, topic: str = "t", index: int = 0) -> None:
        """Begin or cancel (None) a reassignment, as soon as there is a controller that can."""
        requested = [RequestedReassignment(topic, index, target)]
        while True:
            for machine in self.machines.values():
                if machine.services is None or not machine.services.controller.is_elected:
                    continue
                with suppress(KafkaError):
                    (outcome,) = await machine.loop.run(
                        machine.services.controller.reassignments.alter_reassignments(requested)
                    )
                    assert outcome.error is None, outcome.error
                    return
            await asyncio.sleep(0.1)

    def broker_epochs(self) -> list[int]:
        """The epochs of the live brokers' registrations, as broker 1 knows them."""
        return [broker.epoch for broker in self.broker(1).services.metadata.brokers.values()]

    # Clients.

    def client(self, node_id: int, requests: Callable[[Client], Awaitable[Any]]) -> "asyncio.Future[Any]":
        """Run requests on a connection to a broker, and return their result."""
        host = self.host("client")

        async def run() -> Any:
            _, client = await host.create_connection(lambda: Client(host), f"b{node_id}", PORT)
            try:
                return await requests(client)
            finally:
                client.close()

        return host.run(run())

    async def produce(self, node_id: int, records: bytes, topic: str = "t", **options: Any) -> None:
        """Produce with acks=all to the leader of a partition."""
        response = await self.client(node_id, lambda client: client.produce(topic, records, **options))
        assert response.error_code == 0, response

    def _is_open(self, node_id: int, topic: str, index: int) -> bool:
        services: Any = self.machines[node_id].services
        return services is not None and services.replicas.get(topic, index) is not None
