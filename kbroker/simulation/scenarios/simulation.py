"""The simulation of one run: virtual time, the machines with their brokers, network, client hosts, history."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.coordinator.share.share_partition_state import SharePartitionKey
from kbroker.metadata.store import znodes
from kbroker.simulation.checker.history import (
    DeleteRecords,
    History,
    Operation,
    Outcome,
    OutOfDate,
    Poll,
    Send,
    TopicPartition,
)
from kbroker.simulation.clients.producer import ACKS_ALL
from kbroker.simulation.coordination.service import SESSION_MS, SimCoordination
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.invariants.cluster import ClusterInvariants
from kbroker.simulation.invariants.controller_state import ControllerState
from kbroker.simulation.invariants.share_partitions import SharePartitionInvariants
from kbroker.simulation.network.link import ANY
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.runtime.loop import WAKEUP_DELAYS_NS, SimLoop
from kbroker.simulation.runtime.machine import DATA, PORT, Machine
from kbroker.simulation.scenarios.supervisor import (
    START_TIMEOUT_S,
    SUPERVISION_INTERVAL_S,
    BrokerSupervisor,
    NotServing,
    WriteProgress,
    loss_of,
)
from kbroker.storage.file_names import META_PROPERTIES

if TYPE_CHECKING:
    from kbroker.coordination.data_tree import DataTree

T = TypeVar("T")

# The racks of brokers and clients.
RACKS = ("a", "b")
RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
# Users log in on a second listener; all other clients of a run are a super user.
SECURED_PORT = PORT + 1
SECURITY = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "quota.window.num": "2",
}
# The interval of the checks of invariants, in seconds.
INVARIANT_CHECK_INTERVAL_S = 0.05
# Every n-th check includes durability.
CHECKS_PER_DURABILITY_CHECK = 8
# The wall clocks of brokers differ by at most this time.
MAX_SKEW_MS = 300
# The suffix of a file that the operator has moved away.
REMOVED = ".removed"


class Simulation:
    """Everything that a run simulates. A broker that has ended is restarted, except within `down`.

    `brokers`: the number of machines, which share the coordination service; the last `joining` of them are installed
    later, with `install`. `durable`: clients may receive synced
    records only.
    """

    def __init__(
        self,
        seed: object,
        configs: Mapping[str, str],
        *,
        coordination: bool = False,
        durable: bool = False,
        brokers: int = 1,
        joining: int = 0,
    ) -> None:
        self.seed = seed
        self.random = Random(f"{seed}/stage")
        self.sim_loop = SimLoop(seed, WAKEUP_DELAYS_NS)
        self.network = self.sim_loop.network
        self.network.trace = self._trace
        self.history = History(lambda: self.sim_loop.elapsed_ns)
        self.coordination: SimCoordination | None = None
        if coordination or brokers > 1:
            self.coordination = SimCoordination(self.sim_loop, Random(f"{seed}/coordination"))
            self.coordination.trace = self._trace
        self._out_of_date: dict[int, Operation | None] = {}  # of runs with security: since when
        self.machines = [self._machine(number, brokers, configs) for number in range(1, brokers + 1)]
        self.supervisors = {
            machine.name: BrokerSupervisor(machine, self.history, self.random, replicated=brokers > 1)
            for machine in self.machines
        }
        for supervisor in self.supervisors.values():
            supervisor.has_other_metadata = lambda: self.is_metadata_replaced
        for machine in self.machines[brokers - joining :]:
            self.supervisors[machine.name].is_installed = False
        self.cluster: ClusterInvariants | None = None
        if brokers > 1 and self.coordination is not None:
            self.cluster = ClusterInvariants(self.machines, self.coordination.tree, durable=durable)
            self.coordination.on_commit = self._check_stored
        self.shares = SharePartitionInvariants(self.machines, self._leader_epoch)
        # The data of the coordination service before it was replaced; None while it is not.
        self._former_metadata: DataTree | None = None
        # The machines that clients do not reach meanwhile.
        self._hidden: dict[str, None] = {}
        self._progress: WriteProgress | None = None
        self.clients: list[HostLoop] = []
        self._broken: BrokenInvariant | None = None
        if durable or brokers > 1:
            self.history.on_end = self._check_exposed

    def _machine(self, number: int, brokers: int, configs: Mapping[str, str]) -> Machine:
        if brokers == 1:
            machine = Machine(self.sim_loop, self.seed, "broker", configs, self.coordination)
            machine.on_process_end = lambda power: self._record_loss(machine, power)
            return machine
        name = f"broker{number}"
        own = {"node.id": str(number), "zookeeper.session.timeout.ms": str(SESSION_MS)}
        if configs.keys() >= RACK_AWARE.keys():
            own["broker.rack"] = RACKS[number % len(RACKS)]
        if configs.keys() >= SECURITY.keys():
            own["listeners"] = f"PLAINTEXT://{name}:{PORT},SASL_PLAINTEXT://{name}:{SECURED_PORT}"
            self._out_of_date[number] = None
        machine = Machine(self.sim_loop, self.seed, name, {**configs, **own}, self.coordination)
        machine.usual_skew_ms = machine.clock.skew_ms = self.random.randint(-MAX_SKEW_MS, MAX_SKEW_MS)
        machine.on_process_end = lambda power: self._record_end(number, power)
        return machine

    def expect_progress(self, min_isr: int) -> None:
        """Check from now on that writes go on while enough brokers can write."""
        self._progress = WriteProgress(list(self.supervisors.values()), self.history, min_isr)

    def _record_end(self, broker: int, power: bool) -> None:
        self.supervisors[self.machines[broker - 1].name].end_unsynced_start()
        if power and self.cluster is not None:
            self.cluster.lose(broker)

    def replace_disk(self, machine: Machine) -> None:
        """Kill the broker of a machine, and install an empty disk."""
        assert self.cluster is not None
        self.cluster.lose(self.machines.index(machine) + 1)
        machine.replace_disk()
        self._hide_from_clients(machine)

    @property
    def is_metadata_replaced(self) -> bool:
        """Whether the coordination service has other data than that of the cluster."""
        return self._former_metadata is not None

    def replace_metadata(self, other: DataTree) -> None:
        """Replace the data of the coordination service. Until it is put back, the checks go by the data of before."""
        assert self.coordination is not None
        former = self._former_metadata = self.coordination.copy()
        if self.cluster is not None:
            self.cluster.use(former)
        self.coordination.replace_data(other)
        for machine in self.machines:
            self._hide_from_clients(machine)

    def _hide_from_clients(self, machine: Machine) -> None:
        """Cut a machine off that may become part of another cluster: its acknowledgements are of no cluster of ours."""
        if self.is_metadata_replaced and not machine.disk.exists(f"{DATA}/{META_PROPERTIES}"):
            self._hidden[machine.name] = None
            self.network.faults.cut(ANY, machine.name)
            self.network.faults.cut(machine.name, ANY)

    def put_metadata_back(self) -> None:
        """Put the data of the coordination service back that it had before it was replaced, if it was.

        The operator also gives machines back to their cluster that have become part of another one meanwhile.
        """
        former, self._former_metadata = self._former_metadata, None
        if former is None:
            return
        assert self.coordination is not None
        self.note("the operator has put the data of the coordination service back")
        self.coordination.replace_data(former)
        if self.cluster is not None:
            self.cluster.use(self.coordination.tree)
        for machine in self.machines:
            self._give_back(machine, _cluster_id(former))
        for name in self._hidden:
            self.network.faults.restore(ANY, name)
            self.network.faults.restore(name, ANY)
        self._hidden.clear()

    def _give_back(self, machine: Machine, cluster_id: bytes) -> None:
        """Restore the owner of a machine's data directory, or empty a disk that another cluster has begun to use."""
        path, owner = f"{DATA}/{META_PROPERTIES}", self._owner(machine)
        if machine.disk.exists(f"{path}{REMOVED}"):
            self.note_of(machine, f"kill -9, and the operator has restored {META_PROPERTIES}")
            machine.kill()
            machine.disk.rename(f"{path}{REMOVED}", path)
        elif owner and cluster_id not in owner:
            self.note_of(machine, "kill -9, and the operator has emptied the disk, which another cluster has used")
            self.replace_disk(machine)

    def remove_owner(self, machine: Machine) -> None:
        """Kill the broker of a machine and remove meta.properties, so that it joins or begins another cluster."""
        path = f"{DATA}/{META_PROPERTIES}"
        machine.kill()
        if machine.disk.exists(path):
            machine.disk.rename(path, f"{path}{REMOVED}")
        self._hide_from_clients(machine)

    def restore_metadata(self, copy: DataTree) -> None:
        """Replace the data of the coordination service by an older copy of it."""
        assert self.coordination is not None
        self.coordination.replace_data(copy)
        if self.cluster is not None:
            self.cluster.restore()

    @property
    def machine(self) -> Machine:
        """The machine of a lone broker, or the first."""
        return self.machines[0]

    def draw_machine(self, random: Random) -> Machine:
        return random.choice(self.installed) if len(self.machines) > 1 else self.machine

    @property
    def installed(self) -> list[Machine]:
        """The machines that are part of the cluster."""
        return [supervisor.machine for supervisor in self.supervisors.values() if supervisor.is_installed]

    def install(self, machine: Machine) -> None:
        """Add a machine to the cluster: its broker starts, and joins."""
        self.note_of(machine, "joins the cluster")
        self._hide_from_clients(machine)
        self.supervisors[machine.name].is_installed = True

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(machine.name, PORT) for machine in self.machines]

    def _leader_epoch(self, tp: TopicPartition) -> int | None:
        """Return the leader epoch of a partition as the controller has stored it, None without a leader."""
        if self.cluster is not None:
            return self.cluster.leader_epoch(tp)
        services = self.machine.services
        partition = None if services is None else services.replicas.get(*tp)
        return None if partition is None else partition.leader_epoch

    def share_leader(self, group: str, node: int, tp: TopicPartition) -> object:
        """Return the object of a broker that has the locks of a share group, None if there is none."""
        services = self.machines[max(node - 1, 0) if len(self.machines) > 1 else 0].services
        topic = None if services is None else services.metadata.topics.get(tp[0])
        if services is None or topic is None:
            return None
        leader = services.share.leaders.get(SharePartitionKey(group, topic.topic_id, tp[1]))
        return leader if leader is not None and leader.state is not None and leader.failure is None else None

    def note(self, text: str) -> None:
        self.history.note("simulation", text)

    def note_of(self, machine: Machine, text: str) -> None:
        """Add a note about a machine, which is named if there are several."""
        self.note(text if len(self.machines) == 1 else f"{machine.name}: {text}")

    # Clients.

    def client(self, name: str) -> HostLoop:
        """Create a host for a client program."""
        loop = HostLoop(self.sim_loop, name, Random(f"{self.seed}/{name}/threads"))
        self.clients.append(loop)
        return loop

    def random_for(self, purpose: str) -> Random:
        return Random(f"{self.seed}/{purpose}")

    # Losses.

    def _record_loss(self, machine: Machine, power: bool) -> None:
        self.supervisors[machine.name].end_unsynced_start()
        loss = loss_of(machine.disk, power=power)
        if loss is not None:
            self.history.record("simulation", loss)

    # Supervision of the brokers.

    def down(self, machine: Machine | None = None) -> AbstractContextManager[None]:
        """Keep the supervisor from starting the broker of a machine, by default the first."""
        return self.supervisors[(machine or self.machine).name].down()

    def end_faults(self) -> None:
        """From now on a broker that does not start is an error."""
        for supervisor in self.supervisors.values():
            supervisor.faults_over = True

    async def watch(self) -> None:
        """Check the invariants periodically. Raises BrokenInvariant."""
        for number in range(1 << 62):
            for supervisor in self.supervisors.values():
                supervisor.check_unsynced_start()
            self._record_out_of_date()
            self.check_invariants(durability=number % CHECKS_PER_DURABILITY_CHECK == 0)
            if self._progress is not None:
                self._progress.check(self.sim_loop.time(), is_quiet=self._all_have_joined)
            await asyncio.sleep(INVARIANT_CHECK_INTERVAL_S)

    def _record_out_of_date(self) -> None:
        """Record which brokers do not run, or do not learn of changes at once."""
        for broker, spell in self._out_of_date.items():
            machine, service = self.machines[broker - 1], self.coordination
            assert service is not None
            is_up = machine.services is not None and not machine.paused and machine.is_connected
            if is_up and service.is_prompt(machine.name):
                if spell is not None:
                    self.history.end(spell, Outcome.OK)
                self._out_of_date[broker] = None
            elif spell is None:
                self._out_of_date[broker] = self.history.begin("simulation", OutOfDate(broker))

    def _check_exposed(self, operation: Operation) -> None:
        action = operation.action
        try:
            if isinstance(action, Send):
                # With replicas, a change of the leader may lose a batch that was acknowledged to acks=1.
                is_safe = bool(action.acks) if self.cluster is None else action.acks == ACKS_ALL
                if operation.outcome is Outcome.OK and is_safe and action.base_offset is not None:
                    self._check_exposed_end(action.tp, action.base_offset + len(action.values))
            elif isinstance(action, DeleteRecords):
                if operation.outcome is Outcome.OK and self.cluster is not None:
                    self.cluster.check_deleted(action.tp, action.before)
            elif isinstance(action, Poll):
                for tp, end in {read.tp: read.offset + 1 for read in action.reads}.items():
                    self._check_exposed_end(tp, end)
        except BrokenInvariant as broken:
            # Raised later by check_invariants and not here, in a callback of the client.
            self._broken = self._broken or broken

    def _check_stored(self) -> None:
        assert self.cluster is not None
        try:
            self.cluster.check_stored()
            self._check_registered()
        except BrokenInvariant as broken:
            self._broken = self._broken or broken

    def _check_registered(self) -> None:
        """Check that no broker of the cluster has registered in another one."""
        if self._former_metadata is None or self.coordination is None:
            return
        tree, cluster_id = self.coordination.tree, _cluster_id(self._former_metadata)
        for id in tree.children(znodes.BROKERS) if tree.version(znodes.BROKERS) is not None else ():
            if cluster_id in self._owner(self.machines[int(id) - 1]):
                raise BrokenInvariant(f"broker {id} has joined another cluster")

    def _owner(self, machine: Machine) -> bytes:
        """Return meta.properties of a machine's data directory, empty if there is none."""
        path = f"{DATA}/{META_PROPERTIES}"
        return bytes(machine.disk.data(path)) if machine.disk.exists(path) else b""

    def _check_exposed_end(self, tp: TopicPartition, end: int) -> None:
        if self.cluster is not None:
            self.cluster.check_exposed(tp, end)
        else:
            self.supervisors[self.machine.name].invariants.check_exposed(tp, end)

    def check_invariants(self, *, durability: bool = True) -> None:
        if self._broken is not None:
            raise self._broken
        if self.cluster is not None:
            self.cluster.check()
        if not self.is_metadata_replaced:
            self.shares.check()
        for supervisor in self.supervisors.values():
            supervisor.check_invariants(durability=durability)

    async def until_serving(self, seconds: float = START_TIMEOUT_S) -> None:
        """Wait until the brokers are up, and registered if there are several."""
        deadline = self.sim_loop.time() + seconds
        while not (self.serving and self._all_registered):
            if self.sim_loop.time() > deadline:
                raise NotServing(f"after {seconds} s")
            await asyncio.sleep(SUPERVISION_INTERVAL_S)

    @property
    def serving(self) -> bool:
        return all(supervisor.serving for supervisor in self.supervisors.values() if supervisor.is_installed)

    @property
    def _all_registered(self) -> bool:
        """Whether the controller knows all brokers: new topics need them."""
        if self.cluster is None or self.coordination is None:
            return True
        registered = ControllerState(self.coordination.tree).brokers().values()
        return sum(not broker.fenced for broker in registered) == len(self.installed)

    @property
    def _all_have_joined(self) -> bool:
        """Whether the controller has unfenced the current process of each broker."""
        assert self.coordination is not None
        known = ControllerState(self.coordination.tree).brokers()
        for broker_id, machine in enumerate(self.machines, 1):
            broker, services = known.get(broker_id), machine.services
            if broker is None or broker.fenced or services is None:
                return False
            if broker.registration.epoch != services.replicas.logs.broker_epoch:
                return False
        return True

    def is_replicated(self) -> bool:
        """Return whether all brokers serve and all replicas of all partitions are in sync."""
        cluster = self.cluster
        return self.serving and cluster is not None and not cluster.has_lossy_replica and not cluster.missing_replicas()

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run the simulation until the story ends. Exceptions of the supervisors or the watch end it too."""
        return self.sim_loop.run_until_complete(self._play(story))  # type: ignore[no-any-return]

    async def _play(self, story: Coroutine[Any, Any, T]) -> T:
        supervising = [supervisor.run() for supervisor in self.supervisors.values()]
        tasks = [self.sim_loop.create_task(coroutine) for coroutine in (story, *supervising, self.watch())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        pending = [task for task in tasks if task not in done]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        # Errors of the supervisors and the watch come first: errors of the story may be their consequence.
        for task in tasks[1:]:
            if task in done:
                task.result()
        return tasks[0].result()  # type: ignore[return-value]

    def close(self) -> None:
        """Discard the machines, the clients and all pending tasks."""
        self.network.trace = None
        for machine in self.machines:
            machine.discard()
        for loop in self.clients:
            loop.discard()
        self.sim_loop.close()

    def _trace(self, *facts: object) -> None:
        self.sim_loop.trace.record(*facts)


def _cluster_id(tree: DataTree) -> bytes:
    return str(znodes.decode(znodes.CLUSTER_ID, tree.get(znodes.CLUSTER_ID).data)["id"]).encode()
