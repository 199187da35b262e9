"""The lifecycle of a broker: what survives a stop, a kill and a power loss, and what stops it."""

import asyncio

import pytest

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.config.values import ConfigError
from kbroker.coordination.interface import SessionExpired, Unavailable
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.sampling import third_of
from tests.unit.replica.logs.test_compaction import commit, committed
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import CONFIGS, HOUR, MINUTE, Machine, broker_test


class GroupMember:
    """The only member of a group."""

    def __init__(self) -> None:
        self.id = ""
        self.generation = -1

    async def join(self, client: Client) -> None:
        response = await self._join(client)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            response = await self._join(client)
        assert response.error_code == 0
        self.generation = response.generation_id
        assignment = SyncGroupRequestAssignment(member_id=self.id, assignment=b"everything")
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.id, assignments=[assignment],
            protocol_type="consumer", protocol_name="range",
        )  # fmt: skip
        assert (await client.request(request, 5, SyncGroupResponse)).assignment == b"everything"

    async def _join(self, client: Client) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        return await client.request(request, 5, JoinGroupResponse)

    async def heartbeat(self, client: Client) -> ErrorCode:
        request = HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.id)
        return ErrorCode((await client.request(request, 4, HeartbeatResponse)).error_code)


async def coordinator(m: Machine, client: Client) -> None:
    response = await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 4, FindCoordinatorResponse)
    assert response.coordinators[0].error_code == 0
    await m.broker.services.groups.runtime.wait_until_loaded("g")


# What survives.


@broker_test
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_all_state_survives_a_restart(m: Machine, end: str) -> None:
    client = await m.client()
    topic_id = await client.create_topic("t", 3, retention_ms=5_000_000)
    await client.alter_broker(log_cleaner_threads=2)
    for n in range(30):
        await client.produce("t", batch(b"%d" % n, producer=(7, 0, n // 3)), n % 3)
    await client.delete_records("t", 4, 1)
    await coordinator(m, client)
    member = GroupMember()
    await member.join(client)
    await commit(client, "other", 17)
    cluster_id = m.broker.services.metadata.cluster_id
    if end == "stop":
        await m.stop()
    else:
        await m.crash(power=False)
    await m.start()
    client = await m.client()
    assert [await client.read("t", 4 * (index == 1), index) for index in range(3)] == [
        [b"%d" % n for n in range(index, 30, 3)][4 * (index == 1) :] for index in range(3)
    ]
    assert m.broker.services.metadata.cluster_id == cluster_id
    assert m.broker.services.metadata.topics["t"].topic_id == topic_id
    assert m.partition("t", 2).log.config.retention_ms == 5_000_000
    assert m.broker.config.get("log.cleaner.threads") == 2
    assert m.partition("t", 1).log.log_start_offset == 4
    duplicate = await client.produce("t", batch(b"29", producer=(7, 0, 9)), 2)
    assert (duplicate.error_code, duplicate.base_offset) == (0, 9)
    await coordinator(m, client)
    assert await member.heartbeat(client) is ErrorCode.NONE
    assert await committed(client, "other") == 17


@broker_test
@pytest.mark.parametrize("seed", third_of(range(3)))
async def test_a_power_loss_loses_only_unsynced_records(m: Machine, seed: int) -> None:
    client = await m.client()
    await client.create_topic("kept", flush_before_ack=True)
    await client.create_topic("lazy")
    m.disk.random.seed(seed)
    for n in range(20):
        for name in ("kept", "lazy"):
            await client.produce(name, batch(b"%d" % n, producer=(7, 0, n)))
        await asyncio.sleep(m.disk.random.uniform(0, 12))
    synced = m.partition("lazy").log.recovery_point
    assert synced > 0
    await m.crash(power=True)
    await m.start()
    client = await m.client()
    values = [b"%d" % n for n in range(20)]
    assert await client.read("kept") == values
    lazy = await client.read("lazy")
    assert lazy == values[: len(lazy)]
    assert len(lazy) >= synced
    # The producer continues after the stored records.
    response = await client.produce("lazy", batch(b"next", producer=(7, 0, len(lazy))))
    assert (response.error_code, response.base_offset) == (0, len(lazy))


@broker_test
async def test_a_power_loss_in_the_middle_of_a_batch(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    client = await m.client()
    await client.create_topic("t")
    for n in range(3):
        await client.produce("t", batch(b"%d" % n))
    path = "/data/t-0/00000000000000000000.log"
    m.disk.open(path).truncate(170)
    await m.crash()
    await m.start()
    client = await m.client()
    assert await client.read("t") == [b"0", b"1"]
    assert (await client.produce("t", batch(b"2"))).base_offset == 2
    assert any("cut from" in record.message for record in caplog.records)
    # The truncated tail belongs to an earlier epoch (KIP-320).
    assert m.partition("t").leader_epoch == 1


@broker_test
async def test_repeated_crashes(m: Machine) -> None:
    """At each crash a batch is in flight: the producer retries it, and it is stored once."""
    await (await m.client()).create_topic("t", flush_before_ack=True)
    for n in range(20):
        client = await m.client()
        for sequence in range(4 * n, 4 * n + 3):
            response = await client.produce("t", batch(b"%d" % sequence, producer=(7, 0, sequence)))
            assert (response.error_code, response.base_offset) == (0, sequence)
        in_flight = batch(b"%d" % (4 * n + 3), producer=(7, 0, 4 * n + 3))
        client.send_produce("t", in_flight)
        await asyncio.sleep(0.0002 * n)
        await m.crash(power=n % 2 == 0)
        await m.start()
        client = await m.client()
        response = await client.produce("t", in_flight)
        assert (response.error_code, response.base_offset) == (0, 4 * n + 3)
    assert await client.read("t") == [b"%d" % n for n in range(80)]


# What stops it.


@broker_test
async def test_a_failed_sync_of_the_journal_stops_the_broker(m: Machine) -> None:
    """The state of the coordination store on disk is unknown then, so no more changes are allowed."""
    client = await m.client()
    await client.create_topic("before")
    m.disk.faults.fail_next("sync", lambda path: path.endswith(".journal"))
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1000
    )
    response = await client.request(request, 7, CreateTopicsResponse)
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    reason = await m.broker.stopped
    assert isinstance(reason, Unavailable)
    await m.stop()
    await m.start()
    client = await m.client()
    topics = (await client.request(MetadataRequest(topics=None), 9, MetadataResponse)).topics
    assert [topic.name for topic in topics][:1] == ["before"]


@broker_test
async def test_a_lost_session_stops_the_broker(m: Machine) -> None:
    session = m.broker._sessions.current
    await session.expire()  # type: ignore[union-attr]
    reason = await m.broker.stopped
    assert isinstance(reason, SessionExpired)


@broker_test
async def test_a_stop_does_not_wait_for_pending_requests(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    await coordinator(m, client)
    member = GroupMember()
    await member.join(client)
    others = [await m.client() for _ in range(5)]
    waiting = [
        others[0].send_fetch({("t", 0): 0}, max_wait_ms=1_000_000),
        asyncio.ensure_future(GroupMember().join(others[1])),
        asyncio.ensure_future(GroupMember().join(others[2])),
    ]
    await asyncio.sleep(2)
    began = m.loop.time()
    await m.stop()
    assert m.loop.time() - began < 1
    for request in waiting:
        with pytest.raises(ConnectionResetError):
            await request
    assert m.disk.exists("/data/.kafka_cleanshutdown")


@broker_test(started=False)
async def test_a_failed_start_releases_everything(m: Machine) -> None:
    blocker = await m.loop.create_server(asyncio.Protocol, "broker", 9092)
    with pytest.raises(OSError, match="in use"):
        await m.start()
    await m.stop()
    blocker.close()
    await m.start()
    await (await m.client()).create_topic("t")


@broker_test(started=False)
async def test_unsupported_configs_are_rejected(m: Machine) -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs names 2"):
        Broker(m, BrokerConfig.load({**CONFIGS, "log.dirs": "/a,/b"}))  # type: ignore[arg-type]


@broker_test
async def test_an_idle_broker_does_little(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 50)
    await client.produce("t", batch(b"a"))
    await asyncio.sleep(11 * MINUTE)
    turns = m.loop.iterations
    await asyncio.sleep(48 * HOUR)
    assert m.loop.iterations - turns < 5000
    assert await (await m.client()).read("t") == [b"a"]
