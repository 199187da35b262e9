"""Simulated clients of one broker and the history that they record, for tests."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from kbroker.simulation.checker import check, render
from kbroker.simulation.checker.history import Action, History, Loss, Operation, Outcome, Read
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.consumer import Consumer, ConsumerConfig
from kbroker.simulation.clients.group_member import Member, MemberConfig
from kbroker.simulation.clients.producer import Producer, ProducerConfig
from kbroker.simulation.clients.records import ValueSource
from tests.unit.support.simulated_broker import HOST, PORT, Machine, broker_test

A = TypeVar("A", bound=Action)

# Here the clients run on the simulation's own loop, not on hosts of their own.
CLIENT_HOST = "127.0.0.1"
PLACE = ("t", 0)
LOG = "/data/t-0/00000000000000000000.log"
BOOTSTRAP = [(HOST, PORT)]


class Program:
    """The clients of one test. Their randomness derives from the machine's seed and their names."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.history = History(lambda: machine.loop.elapsed_ns)
        self.values = ValueSource()
        self.clusters: list[Cluster] = []
        self.members: list[Member] = []

    def random(self, name: str) -> Random:
        return Random(f"{self.machine.seed}/{name}")

    def cluster(self, name: str, **options: Any) -> Cluster:
        cluster = Cluster(self.machine.loop, BOOTSTRAP, self.random(name), name, **options)
        self.clusters.append(cluster)
        return cluster

    def producer(self, name: str = "producer", *, config: ProducerConfig | None = None, **options: Any) -> Producer:
        cluster = self.cluster(name, **options)
        return Producer(cluster, self.history, name, self.random(f"{name}/work"), config)

    def consumer(self, name: str = "consumer", *, config: ConsumerConfig | None = None, **options: Any) -> Consumer:
        cluster = self.cluster(name, **options)
        return Consumer(cluster, self.history, name, self.random(f"{name}/work"), config)

    def member(
        self,
        name: str,
        config: MemberConfig | None = None,
        *,
        consumer_config: ConsumerConfig | None = None,
        **options: Any,
    ) -> Member:
        """Create a member of the group g, which reads the topic t."""
        consumer = self.consumer(name, config=consumer_config, **options)
        member = Member(consumer, self.history, name, "g", ["t"], self.random(f"{name}/group"), config)
        self.members.append(member)
        return member

    def send(self, producer: Producer, tp: tuple[str, int], count: int = 1) -> "asyncio.Future[Operation]":
        return producer.send(tp, self.values.allocate(count))

    def reset_connections(self) -> None:
        """Abort all connections, as a restarted middlebox does."""
        for connection in list(self.machine.broker._server.connections):
            connection._transport.abort()

    def cut_responses(self) -> None:
        """Drop the broker's packets to the clients; the opposite direction still works."""
        self.machine.loop.network.faults.cut(HOST, CLIENT_HOST)

    def cut_requests(self) -> None:
        self.machine.loop.network.faults.cut(CLIENT_HOST, HOST)

    def heal(self) -> None:
        self.machine.loop.network.faults.heal_all()

    def log_size(self) -> int:
        return len(self.machine.disk.data(LOG))

    async def lose_log_after(self, size: int, *, offset: int) -> None:
        """Crash the broker and truncate its log to `size` bytes, whose records end at `offset`."""
        await self.machine.crash()
        self.machine.disk.open(LOG).truncate(size)
        self.history.record("simulation", Loss("power", {PLACE: offset}))
        await self.machine.start()

    def actions(self, kind: type[A], outcome: Outcome = Outcome.OK) -> list[A]:
        return [
            operation.action
            for operation in self.history.operations
            if isinstance(operation.action, kind) and operation.outcome is outcome
        ]

    def close(self) -> None:
        for member in self.members:
            member.close_without_leaving()
        for cluster in self.clusters:
            cluster.close()

    def check(self) -> None:
        """Assert that all operations have ended and that the checker finds no anomaly."""
        assert [operation for operation in self.history.operations if operation.ended is None] == []
        assert render(self.history, check(self.history, durable=False)) == ""


async def read_until(consumer: Consumer, count: int) -> list[Read]:
    """Poll until there are at least `count` records."""
    reads: list[Read] = []
    deadline = consumer.cluster.loop.time() + 120
    while len(reads) < count:
        assert consumer.cluster.loop.time() < deadline, f"only {len(reads)} of {count} records"
        reads += await consumer.poll()
    return reads


def client_test(
    test: Callable[..., Awaitable[None]] | None = None,
    *,
    partitions: int = 1,
    is_checked: bool = True,
    **configs: object,
) -> Any:
    """Make a test from a coroutine whose first argument is a Program. The broker has the topic t, unless it has no
    `partitions`. `is_checked`: the checker judges the history. The parameter `seed`, if any, is the machine's seed."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Any:
        @functools.wraps(test)
        def run_test(**parameters: Any) -> None:
            @broker_test(seed=parameters.get("seed", 1), **configs)
            async def run(machine: Machine) -> None:
                if partitions:
                    await (await machine.client()).create_topic("t", partitions)
                program = Program(machine)
                await test(program, **parameters)
                program.close()
                if is_checked:
                    program.check()

            run()

        _, *parameters = inspect.signature(test).parameters.values()
        run_test.__signature__ = inspect.Signature(parameters)
        return run_test

    return decorate if test is None else decorate(test)
