"""A broker on a simulated machine, which a test starts, stops and crashes.

`@broker_test` makes a test from a coroutine with a Machine as its argument. Time is virtual: waiting for two weeks
takes no time. A test fails if a task remains at its end or if a task has failed.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, TypeVar

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import Environment
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.network.transport import direct_socket
from kbroker.simulation.runtime.environment import SimClock, SimProcesses
from kbroker.simulation.runtime.history_service import SimArchives
from kbroker.simulation.runtime.loop import SimLoop
from tests.unit.support.async_test import until
from tests.unit.support.client import Client, dotted

T = TypeVar("T")

HOST, PORT = "broker", 9092
CONFIGS = {
    "listeners": f"PLAINTEXT://{HOST}:{PORT}",
    "log.dirs": "/data",
    "offsets.topic.num.partitions": "1",
    # Several coordinators' logs, but not the 50 of the default, which each test would create.
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
}
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


# The machine.


class Threads:
    """The threads of a machine. Calls of a function whose name is in `held` wait until they are released."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.held: set[str] = set()
        self.started: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    def offload(self, fn: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return self.loop.create_task(self._run(fn, *args))

    async def _run(self, fn: Callable[..., T], *args: object) -> T:
        name = getattr(fn, "__name__", "")
        self.started[name] += 1
        if name in self.held:
            released: asyncio.Future[None] = self.loop.create_future()
            self._waiting.append((name, released))
            await released
        return await self.loop.run_in_executor(None, fn, *args)

    def release(self, name: str) -> None:
        """Run the waiting calls of a function, and later ones without waiting."""
        self.held.discard(name)
        self.release_waiting(name)

    def release_waiting(self, name: str) -> None:
        """Run the waiting calls of a function."""
        waiting, self._waiting = self._waiting, []
        for waiting_name, released in waiting:
            if waiting_name != name:
                self._waiting.append((waiting_name, released))
            elif not released.done():
                released.set_result(None)


class Machine:
    """The machine on which a broker is started, stopped and crashed. `disk` is its current disk."""

    broker: Broker
    processes: SimProcesses

    def __init__(self, loop: SimLoop, seed: int, configs: Mapping[str, str]) -> None:
        self.loop = loop
        self.seed = seed
        self.configs = {**CONFIGS, **configs}
        self.clock = SimClock(loop)
        self.disk = SimDisk(self.clock, Random(f"{seed}/disk"))
        self.threads = Threads(loop)
        self.archives = SimArchives()
        self.starts = 0
        self._brokers: list[Broker] = []
        self._clients: list[Client] = []

    async def start(self, **configs: object) -> Broker:
        """Start a broker on the disk; configs have underscores for dots."""
        self.starts += 1
        self.configs.update(dotted(configs))
        random = Random(f"{self.seed}/{self.starts}")
        self.processes = SimProcesses(self.loop, self.disk, self.clock, Random(f"{self.seed}/{self.starts}/processes"))
        environment = Environment(
            self.loop, self.clock, self.disk, random, self.threads.offload, self.processes, direct_socket=direct_socket,
            start_service=self.archives.starter(self.loop, random),
        )  # fmt: skip
        self.broker = Broker(environment, BrokerConfig.load(self.configs))
        self._brokers.append(self.broker)
        await self.broker.start()
        return self.broker

    async def stop(self) -> None:
        await self.broker.stop()
        self._brokers.remove(self.broker)

    async def restart(self, **configs: object) -> Broker:
        await self.stop()
        return await self.start(**configs)

    async def crash(self, *, power: bool = False) -> None:
        """Kill the broker: its connections are reset, and none of its later actions has an effect."""
        server = self.broker._server
        for listening in server._listening:
            listening.close()
        for connection in list(server.connections):
            connection._transport.abort()  # type: ignore[union-attr]
        self.disk = self.disk.after_crash(power, keep_running=True)
        await asyncio.sleep(0.01)

    async def client(self, host: str = "client") -> "Client":
        _, client = await self.loop.create_connection(lambda: Client(self.loop), HOST, PORT, local_addr=(host, 0))
        self._clients.append(client)
        return client

    async def end(self) -> None:
        for name in list(self.threads.held):
            self.threads.release(name)
        for client in self._clients:
            client.transport.abort()
        for broker in self._brokers:
            await broker.stop()
        await asyncio.sleep(2 * MINUTE)
        tasks = asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop)}
        assert not tasks, f"left behind: {tasks}"

    # The state of the machine.

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def elapsed_ms(self) -> float:
        return self.loop.elapsed_ns / 1_000_000

    def partition(self, topic: str, index: int = 0) -> Partition:
        replica = self.broker.services.replicas.get(topic, index)
        assert replica is not None
        return replica

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait in virtual time until a condition is true."""
        await until(condition, seconds)


def broker_test(
    function: Callable[..., Awaitable[None]] | None = None, *, seed: int = 1, started: bool = True, **configs: object
) -> Any:
    """Make a test from a coroutine whose first argument is a Machine. `started`: a broker is running on it."""

    def decorate(coroutine_function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def test(**fixtures: object) -> None:
            loop = SimLoop(seed)
            machine = Machine(loop, seed, dotted(configs))

            async def run() -> None:
                if started:
                    await machine.start()
                await coroutine_function(machine, **fixtures)
                await machine.end()

            try:
                loop.run_until_complete(run())
            finally:
                loop.close()

        test.__name__, test.__doc__, test.__module__ = (
            coroutine_function.__name__,
            coroutine_function.__doc__,
            coroutine_function.__module__,
        )
        test.__dict__.update(coroutine_function.__dict__)
        parameters = list(inspect.signature(coroutine_function).parameters.values())
        test.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
        return test

    return decorate if function is None else decorate(function)
