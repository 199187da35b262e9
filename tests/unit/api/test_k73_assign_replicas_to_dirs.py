"""AssignReplicasToDirs: replicas whose logs have failed."""

from typing import Any

from kbroker.metadata.image import WriteHealth
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.replica.logs.disk_reports import DIRECTORY_IDS, LOST_DIRECTORY
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
)
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import settle


async def report(
    handlers: Handlers, broker_id: int, *topics: str, directory: bytes = LOST_DIRECTORY, epoch: int | None = None
) -> Any:
    """Report partition 0 of each topic; returns the response."""
    ids = [handlers.member.image.topics[topic].topic_id if topic else b"?" * 16 for topic in topics]
    partitions = [AssignReplicasToDirsRequestPartition(partition_index=0)]
    rows = [AssignReplicasToDirsRequestTopic(topic_id=topic_id, partitions=partitions) for topic_id in ids]
    own_epoch = broker_id if epoch is None else epoch
    return await handlers.request(
        ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, peer_broker=(broker_id, own_epoch), broker_id=broker_id,
        broker_epoch=own_epoch, directories=[AssignReplicasToDirsRequestDirectory(id=directory, topics=rows)],
    )  # fmt: skip


def state(handlers: Handlers, topic: str) -> tuple[int, int, list[int], list[int]]:
    (partition,) = handlers.member.image.topics[topic].partitions
    return partition.leader, partition.leader_epoch, partition.isr, partition.elr


async def two_brokers() -> Handlers:
    handlers = await start_handlers()
    await handlers.join(2)
    await settle()
    topics = [
        NewTopic("led", assignments=[(0, [2, 1])]),
        NewTopic("followed", assignments=[(0, [1, 2])], configs=[("min.insync.replicas", "2")]),
        NewTopic("alone", assignments=[(0, [2])]),
    ]
    await handlers.member.controller.topics.create_topics(topics, False)
    return handlers


@async_test
async def test_another_replica_leads_and_the_failed_one_is_not_eligible():
    handlers = await two_brokers()
    response = await report(handlers, 2, "led", "followed", "alone", "")
    assert response.error_code == 0
    assert [topic.partitions[0].error_code for topic in response.directories[0].topics] == [0, 0, 0, 0]
    assert state(handlers, "led") == (1, 1, [1], [])
    # A new epoch begins, in which the leader does not know the claims of the failed replica.
    assert state(handlers, "followed") == (1, 1, [1], [])
    assert state(handlers, "alone") == (2, 0, [2], []), "nobody else could lead"


@async_test
async def test_a_repeated_report_and_other_directories_change_nothing():
    handlers = await two_brokers()
    await report(handlers, 2, "led")
    number = handlers.member.controller.last_change_number
    await report(handlers, 2, "led")
    await report(handlers, 2, "followed", directory=b"\7" * 16)
    assert handlers.member.controller.last_change_number == number


@async_test
async def test_errors():
    handlers = await two_brokers()
    assert (await report(handlers, 2, "led", epoch=9)).error_code == ErrorCode.STALE_BROKER_EPOCH
    handlers.member.controller.resign()
    assert (await report(handlers, 2, "led")).error_code == ErrorCode.NOT_CONTROLLER
    assert state(handlers, "led") == (2, 0, [2, 1], [])


@async_test
async def test_a_broker_that_cannot_write_gives_up_its_roles():
    handlers = await two_brokers()

    async def report_health(health: WriteHealth, epoch: int = 2) -> int:
        response = await report(handlers, 2, directory=DIRECTORY_IDS[health], epoch=epoch)
        return response.error_code  # type: ignore[no-any-return]

    assert await report_health(WriteHealth.FAILING, epoch=1) == ErrorCode.STALE_BROKER_EPOCH
    assert await report_health(WriteHealth.FAILING) == 0
    assert state(handlers, "led") == (1, 1, [1], [])
    # Intact, unlike one whose log has failed.
    assert state(handlers, "followed") == (1, 0, [1], [2])
    assert state(handlers, "alone") == (2, 0, [2], []), "nobody else could lead"
    assert handlers.member.image.write_health(2) is WriteHealth.FAILING
    for health in (WriteHealth.PROBATION, WriteHealth.OK):
        assert await report_health(health) == 0
        assert handlers.member.image.write_health(2) is health
    assert state(handlers, "led") == (1, 1, [1], [])


@async_test
async def test_new_topics_avoid_a_broker_that_cannot_write():
    handlers = await two_brokers()
    await handlers.join(3)
    await settle()
    controller = handlers.member.controller
    await controller.replication.set_write_health(1, 1, WriteHealth.FAILING)
    await controller.topics.create_topics([NewTopic("two", 6, 2), NewTopic("three", 6, 3)], False)
    topics = handlers.member.image.topics
    assert all(1 not in partition.replicas for partition in topics["two"].partitions)
    for partition in topics["three"].partitions:
        assert (partition.replicas[2], sorted(partition.isr)) == (1, [2, 3])
        assert partition.leader == partition.replicas[0]
    # On its own replicas only.
    one, both = NewTopic("one", assignments=[(0, [1])]), NewTopic("both", assignments=[(0, [1, 2])])
    await controller.topics.create_topics([one, both], False)
    assert [(row.leader, row.isr) for name in ("one", "both") for row in topics[name].partitions] == [
        (1, [1]),
        (2, [2]),
    ]
