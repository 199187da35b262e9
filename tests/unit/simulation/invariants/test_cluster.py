"""The invariants of several brokers detect each way in which two replicas can disagree."""

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import Create, Set
from kbroker.metadata.store.data_tree import DataTree
from kbroker.metadata.store.znodes import TopicNode, chunk_path, encode_chunk, encode_topic, topic_path
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.invariants.cluster import ClusterInvariants
from kbroker.simulation.runtime.clock import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from tests.unit.simulation.invariants.replica_files import DIRECTORY, ReplicaFiles

TOPIC_ID = b"t" * 16
TP = ("t", 0)


@dataclass
class FakePartition:
    """What the invariants read of a partition."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    is_leader: bool = True
    is_closed: bool = False
    topic_id: bytes = TOPIC_ID
    log: Any = None

    def __post_init__(self) -> None:
        self.log = SimpleNamespace(
            config=SimpleNamespace(is_compacted=False),
            offline=None,
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
        return SimpleNamespace(replicas=SimpleNamespace(get=lambda topic, index: self.partition))


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
        self.store(leader=1, epoch=1, isr=[1, 2, 3])
        self.brokers[0].partition = FakePartition(1, 3, 3)
        machines: Any = self.brokers
        self.invariants = ClusterInvariants(machines, self.tree, durable=self.durable)

    def store(self, *, leader: int, epoch: int, isr: list[int], partition_epoch: int = 0) -> None:
        registration = PartitionRegistration(leader, epoch, [1, 2, 3], isr, partition_epoch=partition_epoch)
        self.tree.apply([Set(chunk_path(0), encode_chunk({TOPIC_ID: {0: registration}}))], 0)

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
    cluster.expect("broker 2, t-0: it is in the ISR .* it ends before BatchId")


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


def test_a_former_leader_is_compared_with_the_stored_isr(cluster: FakeCluster):
    cluster.store(leader=2, epoch=2, isr=[2, 3], partition_epoch=1)
    cluster.brokers[1].partition = FakePartition(2, 2, 3)
    cluster.check()
    cluster.brokers[0].files.append(3, b"x", epoch=1)
    cluster.brokers[0].partition = FakePartition(1, 4, 4)
    cluster.expect("broker 1 is the leader in epoch 1 with the high watermark 4")


def test_a_machine_that_lost_power_is_exempt_until_it_has_left_the_isr(cluster: FakeCluster):
    cluster.invariants.lose(2)
    cluster.brokers[1].files.truncate(0)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 3], partition_epoch=1)
    cluster.check()
    cluster.store(leader=1, epoch=1, isr=[1, 2, 3], partition_epoch=2)
    cluster.expect("broker 2, t-0: it is in the ISR")


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
