"""Partitions are created, changed and deleted with the metadata while requests use them."""

import asyncio
from unittest.mock import Mock

import pytest

from kbroker.common import TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.metadata.image import PartitionRegistration
from kbroker.replica.partition import Partition
from kbroker.replica.partition_state import PartitionState
from kbroker.storage.log.durability import LogDurability
from kbroker.storage.log.log_health import LogHealth
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.errors import ErrorCode
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import MINUTE, Machine, broker_test


@broker_test
async def test_a_topic_that_is_created_again_is_empty(m: Machine) -> None:
    client = await m.client()
    for n in range(4):
        await client.create_topic("t", 3)
        assert (await client.produce("t", batch(b"%d" % n), n % 3)).base_offset == 0
        assert await client.read("t", 0, n % 3) == [b"%d" % n]
        await client.delete_topic("t")
        assert m.broker.services.replicas.partitions == {}
    assert len([name for name in m.disk.listdir("/data") if name.endswith("-delete")]) == 12
    await asyncio.sleep(2 * MINUTE)
    assert [name for name in m.disk.listdir("/data") if name.startswith("t-")] == []


@broker_test
async def test_the_next_start_finishes_deletions(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.delete_topic("t")
    await m.restart()
    assert [name for name in m.disk.listdir("/data") if name.startswith("t-")] == []


@broker_test
async def test_a_flush_during_a_deletion(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    client, admin = await m.client(), await m.client()
    for name in ("waited-for", "in-the-background"):
        await admin.create_topic(name, flush_before_ack=name == "waited-for", flush_ms=1000)
        m.threads.held.add("flush_blocking")
        produced = client.send_produce(name, batch(b"a"), acks=1)
        began = m.threads.started["flush_blocking"]
        await m.until(lambda began=began: m.threads.started["flush_blocking"] > began)  # type: ignore[misc]
        partition = m.partition(name)
        deletion = asyncio.ensure_future(admin.delete_topic(name))
        await produced
        await m.until(lambda partition=partition: partition.log.health.offline is not None)  # type: ignore[misc]
        m.threads.release("flush_blocking")
        await deletion
        await asyncio.sleep(10)
        assert partition not in m.broker.services.replicas.maintenance.unflushed
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@broker_test
async def test_requests_during_a_deletion(m: Machine) -> None:
    """The deletion waits for tasks of the log; requests do not find the partition from its beginning."""
    client, admin = await m.client(), await m.client()
    await admin.create_topic("t")
    await admin.produce("t", batch(b"a"))
    m.threads.held.add("attempt")
    deletion = asyncio.ensure_future(admin.delete_topic("t"))
    await asyncio.sleep(1)
    assert not deletion.done()
    assert (await client.produce("t", batch(b"b"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.fetch_partition("t", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    m.threads.release("attempt")
    await deletion


@broker_test
async def test_a_directory_that_cannot_be_renamed(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.produce("t", batch(b"old"))
    rename = type(m.disk).rename

    def refuse(self, old, new):  # type: ignore[no-untyped-def]
        if old.endswith("/t-0"):
            raise OSError(5, "Input/output error", old)
        rename(self, old, new)

    monkeypatch.setattr(type(m.disk), "rename", refuse)
    await client.delete_topic("t")
    monkeypatch.undo()
    # The directory that remained belongs to another topic, and is renamed.
    await client.create_topic("t", 2)
    assert (await client.produce("t", batch(b"new"))).base_offset == 0
    assert len([name for name in m.disk.listdir("/data") if name.endswith("-stray")]) == 1
    await m.restart()
    assert await (await m.client()).read("t") == [b"new"]


@broker_test
async def test_configs_change_while_a_topic_is_used(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.create_topic("other", max_message_bytes=5000)
    large = batch(b"v", size=2000)
    assert (await client.produce("t", large)).error_code == 0
    await client.alter_topic("t", max_message_bytes=1000)
    assert (await client.produce("t", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await client.produce("other", large)).error_code == 0
    # The cluster-wide default applies to topics without a value.
    await client.alter_broker(message_max_bytes=100)
    assert (await client.produce("other", large)).error_code == 0
    await client.create_topic("third")
    assert (await client.produce("third", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    await client.alter_broker(message_max_bytes=10_000)
    assert (await client.produce("third", large)).error_code == 0


@broker_test
async def test_changing_a_config_of_a_topic_affects_no_other(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.create_topic("other", 5)
    created: list[object] = []
    of = TopicConfig.of
    logs = m.broker.services.replicas.logs
    monkeypatch.setattr(logs, "topic_config", lambda name, overrides: created.append(name) or of(overrides))
    await client.alter_topic("t", retention_ms=1000)
    assert created == ["t"]


@broker_test
async def test_leader_epochs_grow_with_each_start(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    broker_epoch = m.broker.services.metadata.brokers[1].epoch
    for start in range(1, 4):
        await m.restart()
        client = await m.client()
        assert m.partition("t").leader_epoch == start
        await client.produce("t", batch(b"a"))
        assert m.broker.services.metadata.brokers[1].epoch == broker_epoch + start
    assert list(m.partition("t").log.epochs.entries) == [(0, 0), (1, 1), (2, 2), (3, 3)]


@broker_test
async def test_losing_the_leadership_fails_waiting_requests(m: Machine) -> None:
    client, others = await m.client(), [await m.client() for _ in range(3)]
    await client.create_topic("t", flush_before_ack=True)
    m.threads.held.add("flush_blocking")
    produced = client.send_produce("t", batch(b"a"))
    # Before version 11, with the leader epoch, and a consumer that may read from followers.
    options: list[dict[str, int]] = [{"version": 10}, {"leader_epoch": m.partition("t").leader_epoch}, {}]
    fetched = [
        other.send_fetch({("t", 0): 0}, max_wait_ms=100_000, **option)
        for other, option in zip(others, options, strict=True)
    ]
    await asyncio.sleep(1)
    m.partition("t").apply_registration(PartitionRegistration(2, 5, [1, 2], [1, 2]), node_id=1, now_ms=0)
    assert (await produced).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    errors = [(await response).responses[0].partitions[0].error_code for response in fetched]
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, 0]


@broker_test
async def test_a_commit_callback_may_append(m: Machine) -> None:
    """A callback on commit may append; each append returns its own end offset."""
    client = await m.client()
    await client.create_topic("t")
    replicas, tp = m.broker.services.replicas, TopicPartition("t", 0)
    partition = m.partition("t")
    ends: list[int] = []
    # A follower keeps the high watermark back.
    partition.state.update_replicas_and_isr([1, 2], [1, 2])
    replicas.append_internal(tp, batch(b"a"))
    replicas.on_committed(tp, 1, lambda code: ends.append(replicas.append_internal(tp, batch(b"b"))))
    partition.state.update_replicas_and_isr([1], [1])
    assert replicas.append_internal(tp, batch(b"c", b"d")) == 3
    assert ends == [4]
    assert partition.high_watermark == 4


def test_commit_callbacks_are_called_in_the_order_of_offsets() -> None:
    class NoLog:
        tp, config, log_end_offset, topic_id = TopicPartition("t", 0), TopicConfig.of(), 0, bytes(16)
        health = LogHealth(tp)
        producers = ProducerStateManager()

        def update_high_watermark(self, offset: int) -> None:
            self.producers.on_high_watermark_updated(offset)

    log = NoLog()
    partition = Partition(log, PartitionState(1, 0, [1, 2]), Mock())  # type: ignore[arg-type]
    called: list[int] = []
    for offset in (5, 10, 10, 7, 5, 20):
        partition.on_committed(offset, lambda code, offset=offset: called.append(offset))  # type: ignore[misc]
    partition.state.update_replicas_and_isr([1], [1])
    for end, expected in ((4, []), (7, [5, 5, 7]), (19, [5, 5, 7, 10, 10])):
        log.log_end_offset = end
        partition.advance_high_watermark()
        assert called == expected
    partition.close()
    assert called[-1] == 20
    partition.on_committed(1, lambda code: called.append(code))
    assert called[-1] == ErrorCode.NOT_LEADER_OR_FOLLOWER


@broker_test
async def test_stopping_during_a_sync(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    m.threads.held.add("flush_blocking")
    produced = client.send_produce("t", batch(b"a"))
    await m.until(lambda: m.threads.started["flush_blocking"] == 1)
    stopping = asyncio.ensure_future(m.stop())
    with pytest.raises(ConnectionResetError):
        await produced
    await asyncio.sleep(1)
    assert not stopping.done()
    m.threads.release("flush_blocking")
    await stopping
    assert m.disk.exists("/data/.kafka_cleanshutdown")
    await m.start()
    assert await (await m.client()).read("t") == [b"a"]


@broker_test
async def test_unexpected_exceptions_in_threads(m: Machine) -> None:
    """An unexpected exception in a thread is returned as an error, and the broker can still stop."""
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    await client.create_topic("u")
    await client.produce("u", batch(b"a"))

    def fail(*_: object) -> None:
        raise ValueError("unexpected")

    LogDurability.flush_blocking, original = fail, LogDurability.flush_blocking
    try:
        assert (await client.produce("t", batch(b"a"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        m.partition("u").log.durability.checkpoint()
        await m.stop()
    finally:
        LogDurability.flush_blocking = original  # type: ignore[method-assign]
    await m.start()
    assert await (await m.client()).read("u") == [b"a"]


@broker_test
async def test_a_client_learns_that_the_replicas_are_on_other_brokers(m: Machine) -> None:
    """It updates its metadata then. A partition that does not exist is unknown."""
    client = await m.client()
    await client.create_topic("t", 2)
    services = m.broker.services
    topic = services.metadata.topics["t"]
    services.replicas._partitions_by_topic["t"].pop(1)
    services.replicas._partitions_by_topic[topic.topic_id].pop(1)
    assert (await client.produce("t", batch(b"b"), partition=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await client.fetch_partition("t", 0, partition=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await client.fetch_partition("t", 0, partition=2)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@broker_test
async def test_the_partitions_of_a_topic_share_their_config(m: Machine) -> None:
    """The lists of throttled replicas are parsed once, not 4,000 pairs for each of 5,000 partitions."""
    client = await m.client()
    await client.create_topic("t", 3)
    await client.alter_topic("t", leader_replication_throttled_replicas="1:1,02:01", retention_ms=1000)
    replicas = m.broker.services.replicas
    partitions = [replicas.get("t", index) for index in range(3)]
    assert [partition.is_leader_throttled for partition in partitions if partition] == [False, True, True]
    configs = [partition.log.config for partition in partitions if partition]
    assert configs[0] is configs[1] is configs[2]
    await client.create_topic("u", 2)
    created = [replicas.get("u", index) for index in range(2)]
    assert created[0] is not None
    assert created[1] is not None
    assert created[0].log.config is created[1].log.config


def count_checkpoint_writes(m: Machine, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that gets an element with each write."""
    logs = m.broker.services.replicas.logs
    writes: list[None] = []
    write = logs.write_checkpoints

    async def counted() -> None:
        writes.append(None)
        await write()

    monkeypatch.setattr(logs, "write_checkpoints", counted)
    return writes


@broker_test
async def test_deleted_records_of_many_partitions_share_a_write_of_the_checkpoints(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the offsets of all logs of the broker: one for each of 3,000 partitions would take 15 s."""
    client = await m.client()
    await client.create_topic("t", 5)
    for partition in range(5):
        await client.produce("t", batch(b"a"), partition)
    writes = count_checkpoint_writes(m, monkeypatch)
    partitions = [DeleteRecordsPartition(partition_index=index, offset=1) for index in range(5)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=1000)
    response = await client.request(request, 2, DeleteRecordsResponse)
    results = [(result.error_code, result.low_watermark) for result in response.topics[0].partitions]
    assert results == [(0, 1)] * 5
    assert len(writes) == 1


@broker_test
async def test_topics_that_are_deleted_together_share_a_write_of_the_checkpoints(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the offsets of all logs of the broker, and syncs its files."""
    client = await m.client()
    names = [f"t{number}" for number in range(5)]
    for number, name in enumerate(names):
        await client.create_topic(name, 2, file_delete_delay_ms=1000 * (number % 2))
    writes = count_checkpoint_writes(m, monkeypatch)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    response = await client.request(request, 6, DeleteTopicsResponse)
    assert {result.error_code for result in response.responses} == {0}
    assert len(writes) == 1
    assert not m.broker.services.replicas.partitions
