"""What directed faults of a cluster need: the roles of the brokers for a partition, and what can be done to them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from kbroker.common import KafkaError
from kbroker.coordination.interface import Delete, NoNode
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_requests import ElectionType
from kbroker.metadata.store import znodes
from kbroker.replica.partition import Partition
from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.invariants.controller_state import ControllerState
from kbroker.simulation.network.link import DelayRange
from kbroker.simulation.runtime.machine import Machine
from kbroker.simulation.scenarios.simulation import Simulation


class Scene:
    """A partition of a running cluster. Directed faults wait for conditions, at most for some seconds.

    What a fault has changed ends with the run's faults (Run._end_faults), also if the fault is cancelled.
    """

    def __init__(self, simulation: Simulation, tp: TopicPartition = ("topic0", 0)) -> None:
        assert simulation.coordination is not None
        self.simulation = simulation
        self.service = simulation.coordination
        self.network = simulation.network.faults
        self.tp = tp
        self._state = ControllerState(self.service.tree)

    @classmethod
    def find(cls, simulation: Simulation, condition: Callable[["Scene"], bool]) -> "Scene | None":
        """Return the first partition whose brokers have the roles that a fault needs, None if none has."""
        scenes = [cls(simulation, tp) for tp in cls(simulation)._state.partitions() if not tp[0].startswith("__")]
        return next((scene for scene in scenes if condition(scene)), None)

    # Roles.

    @property
    def stored(self) -> PartitionRegistration:
        """The partition as the controller has stored it."""
        return self._state.partitions()[self.tp].registration

    def machine(self, broker: int) -> Machine:
        return self.simulation.machines[broker - 1]

    @property
    def leader(self) -> Machine:
        return self.machine(self.stored.leader)

    @property
    def followers(self) -> list[Machine]:
        """The other replicas, in the order in which they would be elected."""
        stored = self.stored
        return [self.machine(broker) for broker in stored.replicas if broker != stored.leader]

    def id(self, machine: Machine) -> int:
        return self.simulation.machines.index(machine) + 1

    @property
    def controller(self) -> Machine | None:
        try:
            data = self.service.tree.get(znodes.CONTROLLER).data
        except NoNode:
            return None
        return self.machine(int(znodes.decode(znodes.CONTROLLER, data)["broker"]))

    def broker_epoch(self, machine: Machine) -> int:
        """Return the epoch of the broker's registration; -1 while the controller has fenced it."""
        known = self._state.brokers()[self.id(machine)]
        return -1 if known.fenced else known.registration.epoch

    def ephemeral_epoch(self, machine: Machine) -> int:
        """Return the epoch with which the broker has registered, whether or not the controller knows; -1 without."""
        broker = self.id(machine)
        try:
            data = self.service.tree.get(znodes.broker_path(broker)).data
        except NoNode:
            return -1
        return znodes.decode_broker(broker, data).registration.epoch

    def partition(self, machine: Machine) -> Partition | None:
        return None if machine.services is None else machine.services.replicas.get(*self.tp)

    def end_offset(self, machine: Machine) -> int:
        partition = self.partition(machine)
        return -1 if partition is None else partition.log.log_end_offset

    def high_watermark(self, machine: Machine) -> int:
        partition = self.partition(machine)
        return -1 if partition is None else partition.high_watermark

    def leads(self, machine: Machine) -> bool:
        """Return whether a broker is, and knows that it is, the leader."""
        partition = self.partition(machine)
        return self.stored.leader == self.id(machine) and partition is not None and partition.is_leader

    def is_in_isr(self, *machines: Machine) -> bool:
        return all(self.id(machine) in self.stored.isr for machine in machines)

    # Waiting.

    async def until(self, condition: Callable[[], bool], seconds: float = 3.0) -> bool:
        """Wait until the condition holds. Returns whether it does."""
        deadline = self.simulation.sim_loop.time() + seconds
        while not condition():
            if self.simulation.sim_loop.time() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def until_in_sync(self, min_end_offset: int = 10) -> bool:
        """Wait until all brokers serve, the partition has all replicas in sync, and some records."""
        return await self.until(
            lambda: (
                self.simulation.is_replicated()
                and self.leads(self.leader)
                and self.end_offset(self.leader) > min_end_offset
            ),
            seconds=20.0,
        )

    async def until_replicated(self) -> None:
        """Wait until the replicas have the same records, and the leader knows it. Producers are paused."""
        await self.until(lambda: len({self.end_offset(machine) for machine in (self.leader, *self.followers)}) == 1)
        await asyncio.sleep(0.05)

    async def until_isr_change(self, leader: Machine) -> None:
        """Wait until the leader has decided on a change of the ISR, which the controller may not have yet."""
        partition = self.partition(leader)
        assert partition is not None
        await self.until(lambda: partition.state.proposal is not None)

    # Faults.

    async def elect_preferred(self) -> bool:
        """Elect the first replica, as an operator does with ElectLeaders. The others stay in the ISR.

        Returns whether it leads.
        """
        controller, preferred = self.controller, self.machine(self.stored.replicas[0])
        if controller is None or controller.services is None:
            return False
        election = controller.services.controller.elect_leaders(ElectionType.PREFERRED, [self.tp])
        try:
            await controller.loop.run(election)
        except KafkaError:
            # It is no longer the controller.
            return False
        return await self.until(lambda: self.leads(preferred))

    async def sync(self, machine: Machine) -> None:
        """Sync the log of a broker, and write the checkpoint files."""
        partition = self.partition(machine)
        assert partition is not None
        log = partition.log

        async def sync() -> None:
            synced = machine.loop.create_future()
            log.durability.checkpoint(lambda: synced.set_result(None))
            await synced
            await log.store_log_start()

        await machine.loop.run(sync())

    def delete_controller(self) -> None:
        """Delete the controller's node, so that another controller is elected."""
        self.service.write([Delete(znodes.CONTROLLER)])

    def cut(self, machine: Machine, others: Iterable[Machine]) -> None:
        """Cut the links between brokers, both ways."""
        for other in others:
            self.network.partition(machine.name, other.name)

    def heal(self, machine: Machine, others: Iterable[Machine]) -> None:
        for other in others:
            self.network.heal(machine.name, other.name)

    def delay(self, source: Machine, target: Machine, delay_s: DelayRange) -> None:
        """Delay what one broker sends to another."""
        self.network.latency(source.name, target.name, delay_s)

    def expire(self, machine: Machine) -> None:
        """Expire the broker's session, so that nobody waits for its timeout."""
        for number in self.service.sessions(machine.name):
            self.service.expire(number)

    def kill(self, machine: Machine, *, power: bool = False) -> None:
        """Kill the broker, or power its machine off, and expire its session. It is started again, except in `down`."""
        self.simulation.note(f"{machine.name}: {'power loss' if power else 'kill -9'}")
        if power:
            machine.power_off()
        else:
            machine.kill()
        self.expire(machine)

    async def lose_power(self, machine: Machine) -> None:
        """Power a machine off, and wait until its broker is back with a new broker epoch."""
        epoch = self.broker_epoch(machine)
        self.kill(machine, power=True)
        await self.until(lambda: self.broker_epoch(machine) > epoch)

    @contextmanager
    def isolated(self, machine: Machine) -> Iterator[None]:
        """Cut a broker off from the other brokers and from the coordination service; clients still reach it."""
        others = [other for other in self.simulation.machines if other is not machine]
        self.cut(machine, others)
        self.service.cut(machine.name)
        try:
            yield
        finally:
            self.heal(machine, others)
            self.service.heal(machine.name)

    @contextmanager
    def producers_paused(self) -> Iterator[None]:
        producers = [client for client in self.simulation.clients if client.host.startswith("producer")]
        for producer in producers:
            producer.pause()
        try:
            yield
        finally:
            for producer in producers:
                producer.resume()
