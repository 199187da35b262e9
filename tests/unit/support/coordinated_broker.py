"""A broker that stores its metadata in a simulated coordination service."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.runtime.machine import PORT, Machine
from protocol.errors import ErrorCode
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_hosts import SimulatedHosts

BROKER = "broker"


class CoordinatedBroker(SimulatedHosts):
    """A broker on a machine, its coordination service, and clients."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.service = SimCoordination(self.loop, Random(f"{seed}/coordination"))
        configs = {"offsets.topic.num.partitions": "1", "node.id": "1"}
        self.machine = Machine(self.loop, seed, BROKER, configs, self.service)

    async def start(self) -> None:
        await self.machine.start()

    def discard(self) -> None:
        self.machine.discard()
        super().discard()

    @property
    def broker(self) -> Any:
        assert self.machine.broker is not None
        return self.machine.broker

    @property
    def topics(self) -> list[str]:
        """The topics that the broker knows."""
        return sorted(self.broker.services.metadata.topics)

    @property
    def stored_topics(self) -> list[str]:
        """The topics in the service."""
        return self.service.tree.children("/kbroker/topics")

    def client(self, requests: Callable[[Client], Awaitable[Any]]) -> "asyncio.Future[Any]":
        """Run requests on a connection of their own."""
        host = self.host("client")

        async def run() -> Any:
            _, client = await host.create_connection(lambda: Client(host), BROKER, PORT)
            try:
                return await requests(client)
            finally:
                client.close()

        return host.run(run())

    def create(self, name: str) -> "asyncio.Future[ErrorCode]":
        async def send(client: Client) -> ErrorCode:
            topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
            request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
            response = await client.request(request, 7, CreateTopicsResponse)
            return ErrorCode(response.topics[0].error_code)

        return self.client(send)

    def producer_id(self) -> "asyncio.Future[ErrorCode]":
        async def send(client: Client) -> ErrorCode:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            return ErrorCode((await client.request(request, 4, InitProducerIdResponse)).error_code)

        return self.client(send)

    async def check_works(self) -> None:
        """Check that the broker knows all topics, and that clients can create topics and produce."""
        await self.until(lambda: self.topics == self.stored_topics, 2)
        name = f"new-{self.loop.elapsed_ns}"
        assert await self.create(name) == ErrorCode.NONE
        assert name in self.topics

        async def produce(client: Client) -> None:
            assert (await client.produce(name, batch(b"value"))).error_code == 0

        await self.client(produce)
