"""Topics that vanish from the metadata without having been deleted: their logs stay, and come back with them."""

from random import Random
from typing import Any

import pytest

from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import Create, Delete, Set
from kbroker.metadata.registration import ForeignCluster, layout_ops
from kbroker.metadata.store import znodes
from kbroker.replica.logs.data_directory import ForeignDirectory
from kbroker.simulation.runtime.machine import DATA
from protocol.errors import ErrorCode
from tests.unit.support.client import Client, batch
from tests.unit.support.coordinated_broker import CoordinatedBroker
from tests.unit.support.simulated_hosts import simulated

broker_test = simulated(CoordinatedBroker, range(3))


async def produce(s: CoordinatedBroker, topic: str, *values: bytes) -> None:
    async def send(client: Client) -> None:
        assert (await client.produce(topic, batch(*values))).error_code == ErrorCode.NONE

    await s.client(send)


async def read(s: CoordinatedBroker, topic: str, offset: int = 0) -> list[bytes]:
    return await s.client(lambda client: client.read(topic, offset))  # type: ignore[no-any-return]


def directories(s: CoordinatedBroker, topic: str) -> list[str]:
    return sorted(name for name in s.machine.disk.listdir(DATA) if name.startswith(f"{topic}-"))


def another_cluster() -> DataTree:
    tree = DataTree()
    tree.apply(layout_ops(Random(7)), 0)
    return tree


async def until_stopped(s: CoordinatedBroker) -> None:
    await s.until(lambda: s.machine.broker is None)


@broker_test
async def test_a_broker_stops_when_the_metadata_is_lost(s):
    await s.create("t")
    await produce(s, "t", b"a")
    failure = s.broker.stopped
    copy = s.service.copy()
    s.service.replace_data()
    await until_stopped(s)
    assert isinstance(failure.result(), ForeignCluster)
    assert "lost the metadata" in str(failure.result())
    with pytest.raises(ForeignDirectory, match="is missing from the coordination service"):
        await s.machine.start()
    assert s.service.tree.is_empty, "no cluster is created over a used directory"
    assert directories(s, "t") == ["t-0", "t-1"]
    s.service.replace_data(copy)
    await s.machine.start()
    assert await read(s, "t") == [b"a"]


@broker_test
async def test_a_broker_stops_when_it_finds_another_cluster(s):
    await s.create("t")
    await produce(s, "t", b"a")
    failure = s.broker.stopped
    copy = s.service.copy()
    s.service.replace_data(another_cluster())
    await until_stopped(s)
    assert isinstance(failure.result(), ForeignCluster)
    with pytest.raises(ForeignDirectory, match=r"belongs to cluster .{22}; this broker is in .{22}"):
        await s.machine.start()
    assert s.service.tree.children(znodes.BROKERS) == [], "the broker has not registered"
    assert directories(s, "t") == ["t-0", "t-1"]
    s.service.replace_data(copy)
    await s.machine.start()
    assert await read(s, "t") == [b"a"]


@broker_test
async def test_the_nodes_are_replaced_while_the_session_goes_on(s):
    """Another cluster is created in the same chroot, after an operator has deleted the nodes of this one."""
    await s.create("t")
    failure = s.broker.stopped
    paths = [path for path in s.service.tree.nodes if path.startswith(znodes.ROOT)]
    s.service.write([*(Delete(path) for path in sorted(paths, reverse=True)), *layout_ops(Random(7))])
    await until_stopped(s)
    assert isinstance(failure.result(), ForeignCluster)
    assert directories(s, "t") == ["t-0", "t-1"]


@broker_test
async def test_the_nodes_are_deleted_while_the_session_goes_on(s):
    await s.create("t")
    failure = s.broker.stopped
    paths = [path for path in s.service.tree.nodes if path.startswith(znodes.ROOT)]
    s.service.write([Delete(path) for path in sorted(paths, reverse=True)])
    await until_stopped(s)
    assert isinstance(failure.result(), ForeignCluster)
    assert directories(s, "t") == ["t-0", "t-1"]


def missing(s: Any, topic: str) -> Any:
    """Remove a topic's nodes as a change that names no topic, and return the operations that restore them."""
    tree = s.service.tree
    node, chunks = tree.get(znodes.topic_path(topic)), tree.children(znodes.PARTITIONS)
    data = {znodes.chunk_path(int(name)): tree.get(znodes.chunk_path(int(name))).data for name in chunks}
    s.service.write([Delete(znodes.topic_path(topic)), *(Set(path, b"{}") for path in data)])
    return [Create(znodes.topic_path(topic), node.data), *(Set(path, chunk) for path, chunk in data.items())]


async def read_all_nodes(s: Any) -> None:
    """Let the broker join in another session, in which it reads all nodes again."""
    epoch = s.broker.services.metadata.brokers[1].epoch
    s.service.expire(s.service.sessions(s.machine.name)[0])

    def has_joined() -> bool:
        known = s.broker.services.metadata.brokers.get(1)
        return known is not None and known.epoch > epoch

    await s.until(has_joined)


@broker_test
async def test_logs_of_a_missing_topic_are_set_aside_and_come_back(s):
    await s.create("t")
    await produce(s, "t", b"a", b"b", b"c")
    await s.client(lambda client: client.delete_records("t", 1))
    restore = missing(s, "t")
    await read_all_nodes(s)
    await s.until(lambda: len([name for name in directories(s, "t") if name.endswith("-stray")]) == 2)
    assert s.broker.services.replicas.logs.stray_logs == 2
    s.service.write(restore)
    await read_all_nodes(s)
    await s.until(lambda: directories(s, "t") == ["t-0", "t-1"])
    assert await read(s, "t", 1) == [b"b", b"c"]
    await produce(s, "t", b"d")
    s.machine.kill()
    await s.machine.start()
    assert await read(s, "t", 1) == [b"b", b"c", b"d"]
    partition = s.broker.services.replicas.get("t", 0)
    assert partition.log.log_start_offset == 1, "deleted records do not come back"
    assert not s.machine.disk.exists(f"{DATA}/t-0/stray-offsets")


@broker_test
async def test_logs_that_were_set_aside_come_back_at_a_start(s):
    await s.create("t")
    await produce(s, "t", b"a", b"b")
    await s.client(lambda client: client.delete_records("t", 1))
    restore = missing(s, "t")
    await s.machine.stop()
    await s.machine.start()
    assert [name.endswith("-stray") for name in directories(s, "t")] == [True, True]
    await s.create("t")
    await produce(s, "t", b"of another topic")
    # The topic of before comes back instead of the one with its name.
    path = znodes.topic_path("t")
    s.service.write([Delete(path)])
    s.service.write([op for op in restore if op.path == path])
    s.service.write([op for op in restore if op.path != path])
    await s.machine.stop()
    await s.machine.start()
    assert await read(s, "t", 1) == [b"b"]
    assert s.broker.services.replicas.get("t", 0).log.log_start_offset == 1
    await produce(s, "t", b"c")
    s.machine.kill()
    await s.machine.start()
    assert await read(s, "t", 1) == [b"b", b"c"]


@broker_test
async def test_a_topic_that_was_deleted_while_the_session_was_lost_is_deleted(s):
    await s.create("t")
    await produce(s, "t", b"a")
    s.service.cut(s.machine.name)
    tree, id = s.service.tree, s.broker.services.metadata.topics["t"].topic_id
    chunks = [znodes.chunk_path(int(name)) for name in tree.children(znodes.PARTITIONS)]
    # What another controller writes.
    s.service.write(
        [
            Delete(znodes.topic_path("t")),
            *(Set(path, b"{}") for path in chunks),
            Create(f"{znodes.ROOT}/deleted-topics", znodes.encode({"count": 1})),
            Create(f"{znodes.ROOT}/deleted-topics/0", znodes.encode([id.hex()])),
        ]
    )
    s.service.expire(s.service.sessions(s.machine.name)[0])
    s.service.heal(s.machine.name)
    await s.until(lambda: s.topics == [])
    await s.until(lambda: not directories(s, "t"), 70)


@broker_test
async def test_deleted_topics_are_remembered(s):
    await s.create("t")
    id = s.broker.services.metadata.topics["t"].topic_id
    await s.client(lambda client: client.delete_topic("t"))
    assert id.hex() in s.service.tree.get(f"{znodes.ROOT}/deleted-topics/0").data.decode()
