"""The invariants of several brokers detect each way in which two replicas can disagree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration, WriteHealth
from kbroker.metadata.store import znodes
from kbroker.metadata.store.znodes import (
    TopicNode,
    chunk_path,
    config_path,
    encode_chunk,
    encode_registration,
    encode_topic,
    registration_path,
    topic_path,
)
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.invariants.cluster import ClusterInvariants
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.metadata_files import write_topic_id
from tests.unit.simulation.invariants.replica_files import DIRECTORY, ReplicaFiles

TOPIC_ID = b"t" * 16
TP = ("t", 0)
TOPIC_PARTITION = TopicPartition(*TP)


@dataclass
class FakePartition:
    """What the invariants read of a partition."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    is_leader: bool = True
    is_closed: bool = False
    topic_id: bytes = TOPIC_ID
    tp: TopicPartition = TOPIC_PARTITION
    log: Any = None
    is_compacted: bool = False

    def __post_init__(self) -> None:
        self.log = SimpleNamespace(
            config=SimpleNamespace(is_compacted=self.is_compacted),
            health=SimpleNamespace(offline=None),
            log_start_offset=0,
            log_end_offset=self.log_end_offset,
            recovery_point=self.high_watermark,
            directory=DIRECTORY,
        )


@dataclass
class FakeBroker:
    files: ReplicaFiles
    partition: FakePartition | None = None

    @property
    def disk(self) -> SimDisk:
        return self.files.disk

    @property
    def services(self) -> Any:
        partitions = {} if self.partition is None else {self.partition.tp: self.partition}
        return SimpleNamespace(replicas=SimpleNamespace(get=lambda topic, index: self.partition, partitions=partitions))


@dataclass
class FakeCluster:
    """Three brokers with the partition t-0, the first of which is the leader. Each log has the offsets 0 to 2."""

    durable: bool = False
    tree: DataTree = field(default_factory=DataTree)
    brokers: list[FakeBroker] = field(default_factory=list)

    def __post_init__(self) -> None:
        loop = SimLoop(0)
        for number in range(3):
            files = ReplicaFiles(SimDisk(SimClock(loop), Random(number)))
            for offset in range(3):
                files.append(offset, b"%d" % offset, epoch=1)
            self.brokers.append(FakeBroker(files))
        for path in (znodes.ROOT, znodes.TOPICS, znodes.PARTITIONS, znodes.REGISTRATIONS):
            self.tree.apply([Create(path, b"")], 0)
        self.tree.apply([Create(topic_path("t"), encode_topic(TopicNode(TOPIC_ID, False)))], 0)
        self.tree.apply([Create(chunk_path(0), b"{}")], 0)
        for broker in (1, 2, 3):
            self.tree.apply([Create(registration_path(broker), b"")], 0)
            self.register(broker, epoch=broker)
        self.store(leader=1, epoch=1, isr=[1, 2, 3])
        self.brokers[0].partition = FakePartition(1, 3, 3)
        machines: Any = self.brokers
        self.invariants = ClusterInvariants(machines, self.tree, durable=self.durable)

    def register(self, broker: int, *, epoch: int, fenced: bool = False, health: WriteHealth = WriteHealth.OK) -> None:
        known = KnownBroker(BrokerRegistration(broker, "h", 9092, epoch=epoch, write_health=health), fenced)
        self.tree.apply([Set(registration_path(broker), encode_registration(known))], 0)

    def unregister(self, broker: int) -> None:
        self.tree.apply([Delete(registration_path(broker))], 0)

    def store(
        self,
        *,
        leader: int,
        epoch: int,
        isr: list[int],
        elr: Sequence[int] = (),
        partition_epoch: int = 0,
        created: Sequence[int] = (),
    ) -> None:
        """Store the state of t-0. `created`: the ISR of another partition, t-1; none if it does not exist."""
        registration = PartitionRegistration(
            leader, epoch, [1, 2, 3], isr, elr=list(elr), partition_epoch=partition_epoch
        )
        others = {}
        if created:
            epoch_of_change = 2 - len(created)
            others[1] = PartitionRegistration(created[0], 0, [1, 2], [*created], partition_epoch=epoch_of_change)
        self.tree.apply([Set(chunk_path(0), encode_chunk({TOPIC_ID: {0: registration, **others}}))], 0)

    def check(self) -> None:
        self.invariants.check()

    def expect(self, message: str) -> None:
        with pytest.raises(BrokenInvariant, match=message):
            self.check()


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.check()
    return made


def test_equal_replicas_pass_and_may_differ_above_the_high_watermark(cluster: FakeCluster):
    cluster.brokers[0].files.append(3, b"x", epoch=1)
    cluster.check()


def test_a_replica_in_the_isr_lacks_a_committed_batch(cluster: FakeCluster):
    cluster.brokers[1].files.truncate(2)
    cluster.expect("broker 2, t-0: it may be elected .*, but a client received offset 2, and the log ends at 2")


def test_a_replica_that_is_not_in_the_isr_may_lack_it(cluster: FakeCluster):
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1)
    cluster.brokers[1].files.truncate(0)
    cluster.check()


def test_a_replica_in_the_isr_has_another_batch(cluster: FakeCluster):
    cluster.brokers[2].files.truncate(2)
    cluster.brokers[2].files.append(2, b"other", epoch=0)
    cluster.expect("broker 3, t-0: .* it has BatchId.* instead of BatchId")


def test_two_batches_with_the_same_offset_and_epoch(cluster: FakeCluster):
    cluster.brokers[0].files.append(3, b"x", epoch=1)
    cluster.brokers[2].files.append(3, b"y", epoch=1)
    cluster.expect("broker 3, t-0: BatchId.* but broker 1 has")


@pytest.mark.parametrize("same_topic", [True, False])
def test_the_log_of_a_deleted_topic_of_the_same_name_is_not_compared(cluster: FakeCluster, same_topic: bool):
    """The broker has not seen the deletion yet."""
    files = cluster.brokers[2].files
    files.append(3, b"y", epoch=1)
    write_topic_id(files.disk, DIRECTORY, TOPIC_ID if same_topic else b"d" * 16)
    cluster.brokers[0].files.append(3, b"x", epoch=1)
    cluster.store(leader=1, epoch=1, isr=[1, 2], partition_epoch=1)
    if same_topic:
        cluster.expect("broker 3, t-0: BatchId.* but broker 1 has")
    else:
        cluster.check()


def test_a_former_leader_is_compared_with_the_stored_isr(cluster: FakeCluster):
    cluster.store(leader=2, epoch=2, isr=[2, 3], partition_epoch=1)
    cluster.brokers[1].partition = FakePartition(2, 2, 3)
    cluster.check()
    cluster.brokers[0].files.append(3, b"x", epoch=1)
    cluster.brokers[0].partition = FakePartition(1, 4, 4)
    cluster.expect("broker 1 is the leader in epoch 1 with the high watermark 4")


def test_a_replica_that_has_copied_a_compacted_log_lacks_batches_in_its_active_segment(cluster: FakeCluster):
    for broker in cluster.brokers[:2]:
        broker.files.append(3, b"a", epoch=1, segment=3)
    cluster.check()
    copy = cluster.brokers[2].files
    copy.truncate(0)
    copy.append(1, b"1", epoch=1)
    copy.append(2, b"2", epoch=1)
    copy.append(3, b"b", epoch=1)
    cluster.brokers[0].partition = FakePartition(1, 3, 4, is_compacted=True)
    cluster.check()
    cluster.brokers[0].partition = FakePartition(1, 4, 4, is_compacted=True)
    cluster.expect("broker 3, t-0: it is in the ISR .*, and the logs differ")


def test_a_machine_that_lost_power_is_exempt_until_it_has_left_the_isr(cluster: FakeCluster):
    cluster.invariants.lose(2)
    cluster.brokers[1].files.truncate(0)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=2)
    cluster.expect("broker 2, t-0: it may be elected .*, but a client received offset 2, and the log ends at 0")


def test_a_machine_that_lost_power_while_it_joined_the_isr_is_exempt_until_it_has_left_it(cluster: FakeCluster):
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1)
    cluster.invariants.lose(2)
    cluster.brokers[1].files.truncate(0)
    cluster.check()
    assert not cluster.invariants.has_lossy_replica
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=2)
    cluster.check()
    assert cluster.invariants.has_lossy_replica
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=3)
    cluster.check()
    assert not cluster.invariants.has_lossy_replica
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=4)
    cluster.expect("broker 2, t-0: it may be elected .*, but a client received offset 2, and the log ends at 0")


def test_a_replica_of_a_partition_that_was_created_after_a_machine_lost_power_is_exempt_too(cluster: FakeCluster):
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1)
    cluster.check()
    cluster.invariants.lose(2)
    cluster.check()
    assert not cluster.invariants.has_lossy_replica
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1, created=[1, 2])
    cluster.check()
    assert cluster.invariants.has_lossy_replica
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1, created=[1])
    cluster.check()
    assert not cluster.invariants.has_lossy_replica


def test_a_machine_that_lost_power_is_exempt_until_it_has_registered_again(cluster: FakeCluster):
    cluster.invariants.lose(2)
    cluster.brokers[1].files.truncate(0)
    cluster.check()
    cluster.register(2, epoch=4)
    cluster.expect("broker 2, t-0: it is in the ISR .* since its broker epoch 2, and has the broker epoch 4 now")


def test_a_machine_that_loses_power_while_it_is_unregistered_is_exempt_while_it_is_eligible(cluster: FakeCluster):
    cluster.unregister(2)
    cluster.store(leader=1, epoch=1, isr=[1, 3], elr=[2], partition_epoch=1)
    cluster.invariants.lose(2)
    cluster.brokers[1].files.truncate(0)
    cluster.check()
    cluster.tree.apply([Create(registration_path(2), b"")], 0)
    cluster.register(2, epoch=4)
    cluster.expect("broker 2, t-0: it may be elected .*, but a client received offset 2, and the log ends at 0")


def test_a_machine_that_lost_power_may_join_again_in_its_broker_epoch_only_after_it_was_unregistered(
    cluster: FakeCluster,
):
    cluster.invariants.lose(2)
    cluster.brokers[1].files.truncate(0)
    cluster.unregister(2)
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1)
    cluster.invariants.check_stored()
    cluster.tree.apply([Create(registration_path(2), b"")], 0)
    cluster.register(2, epoch=2)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=2)
    cluster.check()
    assert cluster.invariants.has_lossy_replica
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=3)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=4)
    cluster.expect("broker 2, t-0: it may be elected .*, but a client received offset 2, and the log ends at 0")


def test_a_fenced_broker_in_the_isr(cluster: FakeCluster):
    cluster.register(3, epoch=3, fenced=True)
    cluster.expect("broker 3, t-0: it is fenced, and in the ISR")


def test_a_broker_that_registers_again_leaves_the_isr_in_the_same_change(cluster: FakeCluster):
    cluster.register(3, epoch=4)
    cluster.store(leader=1, epoch=1, isr=[1, 2], partition_epoch=1)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=2)
    cluster.check()


@pytest.mark.parametrize("membership", ["isr", "elr"])
def test_a_replica_that_may_be_elected_lacks_what_a_client_has_received(cluster: FakeCluster, membership: str):
    cluster.invariants.check_exposed(TP, 3)
    isr, elr = ([1, 2, 3], []) if membership == "isr" else ([1, 3], [2])
    cluster.store(leader=1, epoch=1, isr=isr, elr=elr, partition_epoch=1)
    cluster.check()
    cluster.brokers[1].files.truncate(2)
    cluster.expect("broker 2, t-0: it may be elected .*, but a client received offset 2, and the log ends at 2")


def test_deleted_records_come_back(cluster: FakeCluster):
    cluster.brokers[1].partition = FakePartition(1, 3, 3, is_leader=False)
    cluster.brokers[1].partition.log.log_start_offset = 2
    cluster.brokers[0].partition.log.log_start_offset = 2
    cluster.invariants.check_deleted(TP, 2)
    cluster.check()
    cluster.brokers[1].partition.log.log_start_offset = 1
    cluster.expect("broker 2, t-0: .* a client deleted the records below offset 2, and the log starts at 1")


def test_two_leaders_of_one_epoch(cluster: FakeCluster):
    cluster.brokers[1].partition = FakePartition(1, 3, 3)
    cluster.expect("broker 2, t-0: broker 1 is the leader in epoch 1 too")


def test_the_high_watermark_goes_back_within_an_epoch(cluster: FakeCluster):
    cluster.brokers[0].partition = FakePartition(1, 2, 3)
    cluster.expect("went back from 3 to 2 in epoch 1")


def test_the_stored_state(cluster: FakeCluster):
    cluster.store(leader=1, epoch=1, isr=[2, 3], partition_epoch=1)
    cluster.expect("the leader is not in the ISR")
    cluster.store(leader=2, epoch=1, isr=[2, 3], partition_epoch=2)
    cluster.expect("two leaders in epoch 1")


def test_two_states_of_one_partition_epoch(cluster: FakeCluster):
    cluster.store(leader=1, epoch=1, isr=[1, 2], partition_epoch=0)
    cluster.expect("two states of one partition epoch")


def test_a_leader_without_what_a_client_has_received(cluster: FakeCluster):
    cluster.invariants.check_exposed(TP, 3)
    cluster.check()
    cluster.store(leader=2, epoch=2, isr=[2, 3], partition_epoch=1)
    cluster.brokers[1].partition = FakePartition(2, 2, 2)
    cluster.expect("a client received offset 2, and the log ends at 2")


def test_a_client_receives_what_is_not_synced_on_all_replicas():
    cluster = FakeCluster(durable=True)
    cluster.brokers[1].partition = FakePartition(1, 2, 3, is_leader=False)
    cluster.invariants.check_exposed(TP, 2)
    with pytest.raises(BrokenInvariant, match="broker 2, t-0: a client saw offset 2, synced is 0"):
        cluster.invariants.check_exposed(TP, 3)


def test_a_new_partition_has_no_replica_on_a_broker_that_is_cordoned() -> None:
    """Those that it has when it is cordoned stay, and it may get others by reassignments."""
    cluster = FakeCluster()
    partitions = {index: PartitionRegistration(1, 1, [1, 2, 3], [1, 2, 3]) for index in range(2)}
    path = config_path(ConfigResource(ConfigResourceType.BROKER, "3"))
    for parent in (znodes.CONFIGS, path.rpartition("/")[0]):
        cluster.tree.apply([Create(parent, b"")], 0)

    def write(*ops: Op) -> None:
        cluster.tree.apply([*ops, Set(chunk_path(0), encode_chunk({TOPIC_ID: partitions}))], 0)
        cluster.invariants.check_stored()

    write()
    write(Create(path, znodes.encode({"cordoned.log.dirs": "*"})))
    partitions[2] = PartitionRegistration(1, 1, [1, 2], [1, 2])
    write()
    partitions[3] = PartitionRegistration(1, 1, [1, 3], [1, 3])
    with pytest.raises(BrokenInvariant, match=r"t-3: it is new, has the replicas \[1, 3\], and cordoned are \{3\}"):
        write()
    del partitions[3]
    write(Delete(path))
    partitions[3] = PartitionRegistration(1, 1, [1, 3], [1, 3])
    write()


def test_a_broker_that_cannot_write_keeps_its_roles_and_gets_no_others(cluster: FakeCluster):
    cluster.register(1, epoch=1, health=WriteHealth.FAILING)
    cluster.check()
    cluster.store(leader=2, epoch=2, isr=[2, 3], partition_epoch=1)
    cluster.invariants.check_stored()
    cluster.store(leader=2, epoch=2, isr=[1, 2, 3], partition_epoch=2)
    with pytest.raises(BrokenInvariant, match=r"have joined the ISR \[1, 2, 3\]: \[1\]"):
        cluster.invariants.check_stored()


def test_a_broker_that_cannot_write_is_elected_if_nobody_can(cluster: FakeCluster):
    cluster.register(1, epoch=1, health=WriteHealth.FAILING)
    cluster.store(leader=2, epoch=2, isr=[2], elr=[1], partition_epoch=1)
    cluster.invariants.check_stored()
    cluster.store(leader=1, epoch=3, isr=[1], elr=[2], partition_epoch=2)
    cluster.invariants.check_stored()
    cluster.store(leader=2, epoch=4, isr=[1, 2], partition_epoch=3)
    cluster.invariants.check_stored()
    cluster.store(leader=1, epoch=5, isr=[1, 2], partition_epoch=4)
    with pytest.raises(BrokenInvariant, match="was elected although another one"):
        cluster.invariants.check_stored()
