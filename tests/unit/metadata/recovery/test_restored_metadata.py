"""Three brokers of one cluster whose coordination service is restored from an older copy of its data."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import pytest

from kbroker.common import TopicPartition
from kbroker.coordination.data_tree import DataTree
from kbroker.metadata.image import NOTHING_SEEN, BrokerRegistration
from kbroker.metadata.recovery import log_recovery_manager
from kbroker.metadata.recovery.log_recovery import (
    MAX_UNSEEN_CHANGES,
    MAX_UNSEEN_EPOCHS,
    MAX_UNSEEN_PRODUCER_IDS,
    ReplicaLog,
)
from kbroker.metadata.recovery.log_recovery_manager import Key
from kbroker.metadata.replication.partition_requests import ElectionType
from kbroker.metadata.store import znodes
from kbroker.simulation.coordination.service import copy_of
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import settle
from tests.unit.support.metadata_cluster import Cluster, cluster_of_three

T = "t"


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not return are waited for only shortly."""
    monkeypatch.setattr(log_recovery_manager, "FORMER_BROKERS_S", 0.1)


class Logs:
    """The logs of the brokers, by broker; those of partition 0 of the topic T."""

    def __init__(self, cluster: Cluster, **logs: ReplicaLog) -> None:
        self.logs: dict[int, ReplicaLog | None] = {int(name[1:]): log for name, log in logs.items()}
        self._cluster = cluster
        for broker in cluster.brokers.values():
            broker.controller.recovery.read_logs = self.read

    async def read(
        self, brokers: Collection[int], keys: Sequence[Key]
    ) -> Mapping[int, Mapping[Key, ReplicaLog | None]]:
        return {id: dict.fromkeys(keys, self.logs[id]) for id in brokers if id in self.logs}


def copy(cluster: Cluster) -> DataTree:
    """Return a copy of the persistent nodes, as if no broker had been running."""
    tree = copy_of(cluster.store.tree)
    for path in [path for path, node in tree.nodes.items() if node.owner]:
        parent, _, name = path.rpartition("/")
        del tree.nodes[path]
        tree.nodes[parent].children.discard(name)
    return tree


async def restore(cluster: Cluster, tree: DataTree) -> None:
    """End all sessions, and replace the data by a copy. The brokers keep what they have seen."""
    for broker_id, broker in cluster.brokers.items():
        broker.on_session_lost()
        await cluster.sessions[broker_id].close()
    cluster.store.tree.nodes = copy_of(tree).nodes


async def rejoin(cluster: Cluster, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        session = cluster.sessions[broker_id] = cluster.store.session()
        await cluster.brokers[broker_id].rejoin(session, BrokerRegistration(broker_id, "h", broker_id), 0.0)
    await settle()


async def cluster_with_older_copy() -> tuple[Cluster, DataTree]:
    """Return a cluster with a partition that broker 3 leads in epoch 2, and a copy in which 2 leads in epoch 0."""
    cluster = await cluster_of_three()
    await cluster.create(T, [2, 3, 1])
    await cluster.alter(T, "min.insync.replicas", "2")
    older = copy(cluster)
    await cluster.vanish(2)
    await cluster.start(2)
    await cluster.expand(T, 2)
    assert cluster.state(T) == (3, 1, [3, 1, 2])
    return cluster, older


@async_test
async def test_the_replica_with_the_best_log_leads_in_a_new_epoch():
    cluster, older = await cluster_with_older_copy()
    numbers = [broker.seen.number for broker in cluster.brokers.values()]
    Logs(cluster, b1=ReplicaLog(1, 8, 0), b2=ReplicaLog(0, 9, 0), b3=ReplicaLog(1, 7, 0))
    epochs = [broker.broker_epoch for broker in cluster.brokers.values()]
    await restore(cluster, older)
    await rejoin(cluster, 1)
    # Broker 1 alone does not suffice, and the ISR of the copy does not count.
    assert cluster.brokers[1].image.topics[T].partitions[0].leader == -1
    await rejoin(cluster, 2, 3)
    leader, epoch, isr = cluster.state(T)
    assert (leader, isr) == (1, [1])
    assert epoch > 1 + MAX_UNSEEN_EPOCHS
    # Numbers do not go back below those that were seen.
    assert min(broker.broker_epoch for broker in cluster.brokers.values()) > max(epochs)
    assert cluster.controller.seen.number > max(numbers) + MAX_UNSEEN_CHANGES
    assert await cluster.brokers[2].producer_ids.generate_producer_id() >= MAX_UNSEEN_PRODUCER_IDS
    assert cluster.failures == []


@async_test
async def test_a_recovery_is_not_repeated():
    cluster, older = await cluster_with_older_copy()
    Logs(cluster, b1=ReplicaLog(1, 8, 0), b2=ReplicaLog(0, 9, 0), b3=ReplicaLog(1, 7, 0))
    await restore(cluster, older)
    await rejoin(cluster, 1, 2)
    cluster.brokers[1].controller.recovery._wait_until = cluster.brokers[2].controller.recovery._wait_until = 0.0
    cluster.elected.recovery.start()
    await settle()
    image = cluster.brokers[1].image
    before = image.topics[T].partitions[0]
    assert before.leader == 1
    # Broker 3 has seen what is lost, and so it had when the others recovered.
    await rejoin(cluster, 3)
    assert cluster.partition(T) == before
    ids = await cluster.brokers[2].producer_ids.generate_producer_id()
    # A second restore is another one, and no number is used twice.
    await restore(cluster, older)
    await rejoin(cluster, 3, 2, 1)
    assert await cluster.brokers[1].producer_ids.generate_producer_id() > ids + 1_000_000
    leader, epoch, _ = cluster.state(T)
    assert leader == 1
    assert epoch > before.leader_epoch + MAX_UNSEEN_EPOCHS


@async_test
async def test_lost_changes_count_though_their_numbers_are_in_use_again():
    cluster, older = await cluster_with_older_copy()
    Logs(cluster, b1=ReplicaLog(1, 8, 0), b2=ReplicaLog(0, 9, 0), b3=ReplicaLog(1, 7, 0))
    await restore(cluster, older)
    # Broker 2 does not remember what it has seen, and is alone for a while.
    del cluster.brokers[2]
    await cluster.start(2)
    for value in ("1", "2") * 10:
        await cluster.alter(T, "min.insync.replicas", value)
    assert cluster.brokers[2].loader.change_log.number > cluster.brokers[3].seen.number
    assert not cluster.brokers[2].image.topics[T].partitions[0].is_recovering
    Logs(cluster, b1=ReplicaLog(1, 8, 0), b2=ReplicaLog(0, 9, 0), b3=ReplicaLog(1, 7, 0))
    await rejoin(cluster, 3)
    assert cluster.brokers[3].image.topics[T].partitions[0].is_recovering
    await rejoin(cluster, 1)
    assert cluster.state(T)[0] == 1


@async_test
async def test_brokers_that_were_registered_are_waited_for_before_anybody_leads(monkeypatch: pytest.MonkeyPatch):
    """Broker 2 was down when the lost changes were made, and starts first."""
    monkeypatch.setattr(log_recovery_manager, "FORMER_BROKERS_S", 30.0)
    cluster, older = await cluster_with_older_copy()
    Logs(cluster, b1=ReplicaLog(1, 8, 0), b2=ReplicaLog(0, 9, 0), b3=ReplicaLog(1, 7, 0))
    await restore(cluster, older)
    cluster.brokers[2].seen = NOTHING_SEEN
    async with asyncio.timeout(20.0), asyncio.TaskGroup() as starting:
        starting.create_task(rejoin(cluster, 2))
        await asyncio.sleep(0.5)
        assert cluster.brokers[2].controller.is_elected
        assert cluster.brokers[2].image.topics[T].partitions[0].leader_epoch == 0
        starting.create_task(rejoin(cluster, 3))
        starting.create_task(rejoin(cluster, 1))
    await settle()
    assert cluster.state(T)[0] == 1


@async_test
async def test_eligible_leaders_that_had_stopped_are_waited_for_too(monkeypatch: pytest.MonkeyPatch):
    """The copy was made while all brokers were stopped. Then brokers 2 and 3 led, and now broker 1 starts first."""
    monkeypatch.setattr(log_recovery_manager, "FORMER_BROKERS_S", 30.0)
    cluster = await cluster_of_three()
    await cluster.create(T, [1, 2, 3])
    await cluster.alter(T, "min.insync.replicas", "2")
    await cluster.stop(3)
    await cluster.stop(2)
    assert cluster.partition(T).elr == [2]
    older = copy(cluster)
    first = cluster.brokers[1]
    await cluster.stop(1)
    await cluster.start(2, 3)
    await cluster.expand(T, 3)
    assert cluster.state(T) == (2, 1, [2, 3])
    cluster.brokers[1], cluster.sessions[1] = first, cluster.store.session()
    Logs(cluster, b1=ReplicaLog(0, 5, 0), b2=ReplicaLog(1, 9, 0), b3=ReplicaLog(1, 9, 0))
    await restore(cluster, older)
    async with asyncio.timeout(20.0), asyncio.TaskGroup() as starting:
        starting.create_task(rejoin(cluster, 1))
        await asyncio.sleep(0.5)
        assert first.controller.is_elected
        assert first.image.topics[T].partitions[0].leader_epoch == 0
        starting.create_task(rejoin(cluster, 2))
    await rejoin(cluster, 3)
    assert cluster.state(T)[0] == 2


@async_test
async def test_a_new_broker_that_is_elected_waits_for_them_too(monkeypatch: pytest.MonkeyPatch):
    """It is not in the copy. Broker 2, which was down when the lost changes were made, must not lead by it either."""
    monkeypatch.setattr(log_recovery_manager, "FORMER_BROKERS_S", 30.0)
    cluster, older = await cluster_with_older_copy()
    await restore(cluster, older)
    cluster.brokers[2].seen = NOTHING_SEEN
    async with asyncio.timeout(20.0), asyncio.TaskGroup() as starting:
        starting.create_task(cluster.start(4))
        await asyncio.sleep(0.2)
        starting.create_task(rejoin(cluster, 2))
        await asyncio.sleep(0.5)
        assert cluster.brokers[2].image.controller_id == 4
        assert cluster.brokers[2].image.topics[T].partitions[0].leader_epoch == 0
        starting.create_task(rejoin(cluster, 3))
        starting.create_task(rejoin(cluster, 1))
    assert cluster.partition(T).is_recovering
    Logs(cluster, b1=ReplicaLog(1, 8, 0), b2=ReplicaLog(0, 9, 0), b3=ReplicaLog(1, 7, 0), b4=ReplicaLog(-1, 0, 0))
    async with asyncio.timeout(20.0):
        while cluster.partition(T).is_recovering:
            await asyncio.sleep(0.1)
    assert cluster.state(T)[0] == 1


@async_test
async def test_a_new_broker_that_is_elected_while_others_go_on_waits_for_nobody(monkeypatch: pytest.MonkeyPatch):
    """The controller has died, and the other brokers have kept their registrations."""
    monkeypatch.setattr(log_recovery_manager, "FORMER_BROKERS_S", 30.0)
    cluster, _ = await cluster_with_older_copy()
    controller = next(id for id, broker in cluster.brokers.items() if broker.controller.is_elected)
    for broker_id, broker in cluster.brokers.items():
        if broker_id != controller:
            monkeypatch.setattr(broker, "_start_campaign", lambda: None)
    await cluster.vanish(controller)
    async with asyncio.timeout(20.0):
        await cluster.start(4)
    assert cluster.brokers[4].controller.is_elected


@async_test
async def test_an_operator_elects_without_the_missing_logs():
    cluster, older = await cluster_with_older_copy()
    Logs(cluster, b3=ReplicaLog(1, 7, 0))
    await restore(cluster, older)
    await rejoin(cluster, 3)
    controller = cluster.brokers[3].controller
    (outcome,) = await controller.elect_leaders(ElectionType.PREFERRED, [TopicPartition(T, 0)])
    assert outcome.error is not None
    (outcome,) = await controller.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(T, 0)])
    assert outcome.error is None
    assert cluster.brokers[3].image.topics[T].partitions[0].leader == 3


@async_test
async def test_nothing_is_recovered_if_the_copy_lacks_nothing():
    cluster, _ = await cluster_with_older_copy()
    newest = copy(cluster)
    before = cluster.partition(T)
    await restore(cluster, newest)
    await rejoin(cluster, 1, 2, 3)
    assert not cluster.partition(T).is_recovering
    assert cluster.partition(T).leader_epoch < before.leader_epoch + MAX_UNSEEN_EPOCHS
    node = await cluster.sessions[1].get(znodes.PRODUCER_IDS)
    assert znodes.decode(znodes.PRODUCER_IDS, node.data)["next"] < MAX_UNSEEN_PRODUCER_IDS
