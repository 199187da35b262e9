"""The simulation of one run: virtual time, the machine with its broker, network, client hosts, history."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.common import KafkaError
from kbroker.config.values import ConfigError
from kbroker.metadata.store.coordination import CoordinationError
from kbroker.simulation.checker.history import History, Loss, Operation, Outcome, Poll, Send, UnsyncedStart
from kbroker.simulation.checker.invariants import BrokenInvariant, Invariants
from kbroker.simulation.coordination.service import SimCoordination
from kbroker.simulation.disk.log_files import GROUPS_TOPIC, durable_commits, durable_ends, partition_directories
from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.loop import WAKEUP_DELAYS_NS, SimLoop
from kbroker.simulation.runtime.machine import DATA, PORT, Machine
from kbroker.storage.file_names import LOG

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition

T = TypeVar("T")

# Intervals of the checks of invariants, and of whether the broker runs, in seconds.
INVARIANT_CHECK_INTERVAL_S = 0.05
SUPERVISION_INTERVAL_S = 0.02
# Every n-th check includes durability.
CHECKS_PER_DURABILITY_CHECK = 8
# A broker must start within this time once faults are over.
START_TIMEOUT_S = 60.0
RESTART_AFTER_S = (0.01, 1.0)


class NotServing(AssertionError):
    """The broker does not start although faults are over."""


class Simulation:
    """Everything that a run simulates. A broker that has ended is restarted, except within `down`. `durable`: clients
    may receive synced records only."""

    def __init__(
        self, seed: object, configs: Mapping[str, str], *, coordination: bool = False, durable: bool = False
    ) -> None:
        self.seed = seed
        self.random = Random(f"{seed}/stage")
        self.sim_loop = SimLoop(seed, WAKEUP_DELAYS_NS)
        self.network = self.sim_loop.network
        self.network.trace = self._trace
        self.history = History(lambda: self.sim_loop.elapsed_ns)
        self.coordination: SimCoordination | None = None
        if coordination:
            self.coordination = SimCoordination(self.sim_loop, Random(f"{seed}/coordination"))
            self.coordination.trace = self._trace
        self.machine = Machine(self.sim_loop, seed, "broker", configs, self.coordination)
        self.machine.on_process_end = self._record_loss
        self.clients: list[HostLoop] = []
        self.faults_over = False
        self._down = 0
        self._unsynced_start: Operation | None = None
        self._invariants: tuple[object, Invariants] = (None, Invariants(self.machine))
        self._broken: BrokenInvariant | None = None
        if durable:
            self.history.on_end = self._check_exposed

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(self.machine.name, PORT)]

    def note(self, text: str) -> None:
        self.history.note("simulation", text)

    # Clients.

    def client(self, name: str) -> HostLoop:
        """Create a host for a client program."""
        loop = HostLoop(self.sim_loop, name, Random(f"{self.seed}/{name}/threads"))
        self.clients.append(loop)
        return loop

    def random_for(self, purpose: str) -> Random:
        return Random(f"{self.seed}/{purpose}")

    # Losses.

    def _record_loss(self, power: bool) -> None:
        """Record what the end of a process may lose. After a kill, only data that a failed sync left unwritten is lost:
        the next start reads what is on the disk."""
        self._end_unsynced_start()
        disk = self.machine.disk
        ends, commits = durable_ends(disk, DATA), durable_commits(disk, DATA)
        if power:
            self.history.record("simulation", Loss("power loss", ends, commits))
            return
        unwritten = {path.rpartition("/")[0] for path in disk.unwritten() if path.endswith(LOG)}
        if not unwritten:
            return
        directories = partition_directories(disk, DATA)
        ends = {tp: end for tp, end in ends.items() if directories[tp] in unwritten}
        if not any(tp[0] == GROUPS_TOPIC for tp, path in directories.items() if path in unwritten):
            commits = {}
        self.history.record("simulation", Loss("failed syncs", ends, commits))

    # Supervision of the broker.

    @contextmanager
    def down(self) -> Iterator[None]:
        """Keep the supervisor from starting the broker."""
        self._down += 1
        try:
            yield
        finally:
            self._down -= 1

    async def supervise(self) -> None:
        """Start the broker whenever it does not run. Raises NotServing if it does not start after the faults."""
        failing_since: float | None = None
        while True:
            if self.machine.broker is None and not self._down:
                failing_since = await self._start(failing_since)
                await asyncio.sleep(self.random.uniform(*RESTART_AFTER_S))
            await asyncio.sleep(SUPERVISION_INTERVAL_S)

    async def _start(self, failing_since: float | None) -> float | None:
        try:
            await self.machine.start()
        except HostCrashed:
            return None
        except ConfigError:
            raise
        except (OSError, CoordinationError, KafkaError) as error:
            self.note(f"the broker does not start: {error!r}")
            if not self.faults_over:
                return None
            now = self.sim_loop.time()
            if failing_since is not None and now - failing_since > START_TIMEOUT_S:
                raise NotServing(f"{error!r}") from error
            return failing_since or now
        self.note("the broker serves")
        unsynced = [(partition.tp.topic, partition.tp.partition) for partition in self._unsynced_partitions()]
        if unsynced:
            self._unsynced_start = self.history.begin("simulation", UnsyncedStart(tuple(unsynced)))
        return None

    def _unsynced_partitions(self) -> list[Partition]:
        """Return the partitions whose recovered records are not synced although consumers may only see synced ones."""
        return [
            partition
            for partition in self.partitions()
            if partition.flush_before_ack and partition.high_watermark < partition.first_offset
        ]

    def _end_unsynced_start(self) -> None:
        if self._unsynced_start is not None:
            self.history.end(self._unsynced_start, Outcome.OK)
            self._unsynced_start = None

    async def watch(self) -> None:
        """Check the invariants periodically. Raises BrokenInvariant."""
        for number in range(1 << 62):
            if not self._unsynced_partitions():
                self._end_unsynced_start()
            self.check_invariants(durability=number % CHECKS_PER_DURABILITY_CHECK == 0)
            await asyncio.sleep(INVARIANT_CHECK_INTERVAL_S)

    def _check_exposed(self, operation: Operation) -> None:
        action = operation.action
        try:
            if isinstance(action, Send):
                if operation.outcome is Outcome.OK and action.acks and action.base_offset is not None:
                    self._invariants[1].check_exposed(action.tp, action.base_offset + len(action.values))
            elif isinstance(action, Poll):
                for tp, end in {read.tp: read.offset + 1 for read in action.reads}.items():
                    self._invariants[1].check_exposed(tp, end)
        except BrokenInvariant as broken:
            # Raised later by check_invariants and not here, in a callback of the client.
            self._broken = self._broken or broken

    def check_invariants(self, *, durability: bool = True) -> None:
        if self._broken is not None:
            raise self._broken
        broker = self.machine.broker
        if broker is not None:
            if self._invariants[0] is not broker:
                self._invariants = broker, Invariants(self.machine, self._invariants[1])
            self._invariants[1].check(durability=durability)

    async def until_serving(self, seconds: float = START_TIMEOUT_S) -> None:
        """Wait until the broker is up."""
        deadline = self.sim_loop.time() + seconds
        while not self.serving:
            if self.sim_loop.time() > deadline:
                raise NotServing(f"after {seconds} s")
            await asyncio.sleep(SUPERVISION_INTERVAL_S)

    @property
    def serving(self) -> bool:
        return self.machine.services is not None

    def partitions(self) -> list[Partition]:
        """Return the partitions of the running broker."""
        services = self.machine.services
        return [] if services is None else list(services.replicas.partitions.values())

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run the simulation until the story ends. Exceptions of the supervisor or the watch end it too."""
        return self.sim_loop.run_until_complete(self._play(story))  # type: ignore[no-any-return]

    async def _play(self, story: Coroutine[Any, Any, T]) -> T:
        tasks = [self.sim_loop.create_task(coroutine) for coroutine in (story, self.supervise(), self.watch())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        pending = [task for task in tasks if task not in done]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        # Errors of the supervisor and the watch come first: errors of the story may be their consequence.
        for task in tasks[1:]:
            if task in done:
                task.result()
        return tasks[0].result()  # type: ignore[return-value]

    def close(self) -> None:
        """Discard the machine, the clients and all pending tasks."""
        self.network.trace = None
        self.machine.discard()
        for loop in self.clients:
            loop.discard()
        self.sim_loop.close()

    def _trace(self, *facts: object) -> None:
        self.sim_loop.trace.record(*facts)
