"""Consumers with client.rack read from a follower in their rack (KIP-392)."""

import asyncio

import pytest

from kbroker.metadata.image import BrokerRegistration, MetadataDelta
from kbroker.replica.partition_state import PartitionState, select_read_replica
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchResponse
from tests.unit.support.client import Client, batch, values_of
from tests.unit.support.replicated_partition import ReplicatedPartition
from tests.unit.support.simulated_broker import Machine, broker_test

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def brokers(*racks: str | None) -> dict[int, BrokerRegistration]:
    return {id: BrokerRegistration(id, f"b{id}", 9092, rack, 100) for id, rack in enumerate(racks, 1)}


def state(isr: list[int]) -> PartitionState:
    """Return the state of leader 1 with 10 records. Follower N has 10 - N of them, from offset 2 on."""
    result = PartitionState(1, 4, isr)
    result.begin_leader_epoch(5, [1, 2, 3, 4], isr, 0, 0)
    for id, follower in result.followers.items():
        follower.record_fetch(100, 10 - id, 2, 10, 1000)
    return result


@pytest.mark.parametrize(
    ("racks", "isr", "offset", "expected"),
    [
        (("a", "b", "c", "c"), [1, 2, 3, 4], 5, 2),
        # The one with most records.
        (("a", "c", "b", "b"), [1, 2, 3, 4], 5, 3),
        (("a", "c", "b", "b"), [1, 2, 4], 5, 4),
        # The leader is in the rack, or no replica is, or none that is in sync or has the offset.
        (("b", "b", "b", "b"), [1, 2, 3, 4], 5, -1),
        (("a", "a", "a", None), [1, 2, 3, 4], 5, -1),
        (("a", "b", "a", "a"), [1, 3, 4], 5, -1),
        (("a", "b", "a", "a"), [1, 2, 3, 4], 9, -1),
        (("a", "b", "a", "a"), [1, 2, 3, 4], 8, 2),
        (("a", "b", "a", "a"), [1, 2, 3, 4], 1, -1),
        # Broker 4 is fenced.
        (("a", "a", "a"), [1, 2, 3, 4], 5, -1),
    ],
)
def test_selection(racks: tuple[str | None, ...], isr: list[int], offset: int, expected: int) -> None:
    registered = brokers(*racks)
    assert select_read_replica(state(isr), "b", offset, registered, registered) == expected


def test_a_follower_without_the_listener_of_the_consumer_is_not_selected() -> None:
    assert select_read_replica(state([1, 2, 3, 4]), "b", 5, brokers("a", "b", "b", "b"), {1, 3, 4}) == 3


async def replicated(m: Machine) -> tuple[ReplicatedPartition, Client]:
    """Return a partition with 3 records, whose follower 2 is in rack "b"."""
    client = await m.client()
    await client.create_topic("t")
    for value in (b"1", b"2", b"3"):
        await client.produce("t", batch(value))
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    m.broker.services.metadata.apply(MetadataDelta(brokers={2: BrokerRegistration(2, "b2", 9092, "b", 102)}))
    return t, client


async def fetch(client: Client, offset: int, rack: str, version: int = 12) -> FetchResponse:
    request = client.fetch_request({("t", 0): offset})
    request.rack_id = rack
    return await client.request(request, version, FetchResponse)


@broker_test(replica_selector_class=RACK_AWARE)
async def test_the_leader_refers_a_consumer_to_the_follower_in_its_rack(m: Machine) -> None:
    t, client = await replicated(m)
    for replica in (2, 3):
        t.claim(replica, 3)
    for version in (11, 12, 18):
        (result,) = (await fetch(client, 1, "b", version)).responses[0].partitions
        assert (result.preferred_read_replica, result.error_code, result.high_watermark) == (2, 0, 3)
        assert not result.records
    for rack in ("", "c"):
        (result,) = (await fetch(client, 1, rack)).responses[0].partitions
        assert (result.preferred_read_replica, values_of(result)) == (-1, [b"2", b"3"])


@broker_test
async def test_without_a_selector_the_leader_serves_all(m: Machine) -> None:
    t, client = await replicated(m)
    t.claim(2, 3)
    (result,) = (await fetch(client, 1, "b")).responses[0].partitions
    assert (result.preferred_read_replica, values_of(result)) == (-1, [b"2", b"3"])


@broker_test(replica_selector_class=RACK_AWARE)
async def test_a_follower_serves_consumers_up_to_its_high_watermark(m: Machine) -> None:
    t, client = await replicated(m)
    await client.produce("t", batch(b"4"), acks=1)
    t.follow(2)
    (result,) = (await fetch(client, 1, "b")).responses[0].partitions
    assert (result.high_watermark, values_of(result)) == (3, [b"2", b"3"])
    (result,) = (await fetch(client, 9, "b")).responses[0].partitions
    assert result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    # A rack is not required, but a version that could have one.
    for version in (11, 12):
        (result,) = (await fetch(client, 1, "", version)).responses[0].partitions
        assert (result.high_watermark, values_of(result)) == (3, [b"2", b"3"])
    (result,) = (await fetch(client, 1, "", 10)).responses[0].partitions
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # More is committed: the waiting consumer gets it.
    request = client.fetch_request({("t", 0): 3}, max_wait_ms=60_000)
    request.rack_id = "b"
    waiting = asyncio.ensure_future(client.request(request, 12, FetchResponse))
    await asyncio.sleep(1)
    assert not waiting.done()
    t.partition.append_as_follower(b"", [], 4, 0, m.now_ms)
    assert values_of((await waiting).responses[0].partitions[0]) == [b"4"]
    t.m.broker._assigned.resign()
    (result,) = (await fetch(client, 1, "b")).responses[0].partitions
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
