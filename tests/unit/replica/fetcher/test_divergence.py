"""Logs that diverge become equal again without the loss of a committed record (KIP-101, KIP-279, KIP-320).

Each story fails when its mistake is planted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.replica.fetcher.fetched_partitions import FetchedPartitions, PartitionFetchState
from kbroker.replica.partition import Partition
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from tests.unit.support.deletion import delete_records
from tests.unit.support.replica_cluster import ReplicaCluster, offsets, replica_test


async def a_committed_record_above_the_high_watermark_of_a_follower(c: ReplicaCluster) -> None:
    """A follower restarts before it learns the high watermark, and then becomes the leader (KIP-101, scenario 1)."""
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    second = c.produce(1, b"b")
    # The follower claims the second record, but it is killed before it learns the high watermark.
    await c.until(lambda: second.code == 0)
    assert c.nodes[2].partition().high_watermark < 2
    c.cut.add((1, 2))
    await c.restart(2)
    c.elect(1)
    await asyncio.sleep(1)
    await c.kill(1)
    c.elect(2, isr=[2])
    assert offsets(c.nodes[2].content()) == [(0, 1), (1, 1)]


async def a_tail_of_the_former_leader(c: ReplicaCluster) -> None:
    """The former leader has a record that no other replica has; the new leader has another one at that offset."""
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    c.cut.add((1, 2))
    c.produce(1, b"lost", acks=1)
    c.produce(1, b"lost too", acks=1)
    c.elect(2, isr=[2])
    c.produce(2, b"kept")
    assert offsets(await c.until_equal(2, 1, seconds=0.2)) == [(0, 1), (1, 2)]
    assert b"kept" in c.nodes[1].content()


async def leaders_change_faster_than_records_are_replicated(c: ReplicaCluster) -> None:
    """Each broker has records of an epoch that the other one has not (KIP-279)."""
    await c.replicate(1, 2)
    await c.until(lambda: c.fetches.get((1, 2)))
    c.cut |= {(1, 2), (2, 1)}
    c.produce(1, b"a1", acks=1)
    c.produce(1, b"a2", acks=1)
    c.elect(2, isr=[2])
    c.produce(2, b"b1", acks=1)
    c.elect(1, isr=[1])
    c.produce(1, b"c1", acks=1)
    c.produce(1, b"c2", acks=1)
    c.elect(2, isr=[2])
    c.produce(2, b"d1", acks=1)
    c.cut.clear()
    assert offsets(await c.until_equal(2, 1)) == [(0, 2), (1, 4)]


async def a_tail_below_the_log_start_offset_of_the_new_leader(c: ReplicaCluster) -> None:
    """The new leader's records at the offsets of the tail are deleted, and its epoch with them (KIP-107)."""
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    c.cut.add((1, 2))
    for _ in range(5):
        c.produce(1, b"lost", acks=1)
    c.elect(2, isr=[2])
    for _ in range(3):
        await c.commit(2, b"deleted")
    c.elect(2, isr=[2])
    await c.commit(2, b"kept")
    await delete_records(c.nodes[2].replicas, c.nodes[2].partition(), 4)
    assert c.nodes[2].partition().log.epochs.entries == [(3, 4)]
    assert offsets(await c.until_equal(2, 1)) == [(4, 3)]
    # A log start offset that goes back, for whatever reason, would bring the tail back.
    assert [segment.base_offset for segment in c.nodes[1].partition().log.segments] == [4]


async def a_response_of_a_former_leader(c: ReplicaCluster) -> None:
    """A response is on its way while another broker becomes the leader."""
    await c.replicate(1, 2, 3)
    await c.until(lambda: c.fetches.get((1, 2)) and c.fetches.get((1, 3)))
    c.cut.add((1, 3))
    c.hold(1, 2)
    c.produce(1, b"lost", acks=1)
    await asyncio.sleep(1)
    c.elect(3, isr=[3], unaware=[1])
    await asyncio.sleep(0)
    c.release(1, 2)
    await asyncio.sleep(0.1)
    assert c.nodes[2].content() == b""
    c.produce(3, b"kept")
    assert offsets(await c.until_equal(3, 2)) == [(0, 2)]


Story = Callable[[ReplicaCluster], Awaitable[None]]
STORIES: tuple[Story, ...] = (
    a_committed_record_above_the_high_watermark_of_a_follower,
    a_tail_of_the_former_leader,
    leaders_change_faster_than_records_are_replicated,
    a_tail_below_the_log_start_offset_of_the_new_leader,
    a_response_of_a_former_leader,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_divergence(story: Story) -> None:
    replica_test(story)()


def truncate_to_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate as before KIP-101, whenever the partition gets a leader."""
    become_follower = Partition.become_follower

    def become_and_truncate(self: Partition, *args: Any) -> None:
        become_follower(self, *args)
        task = self.follower_truncate(self.high_watermark)
        asyncio.get_running_loop().create_task(task)

    monkeypatch.setattr(Partition, "become_follower", become_and_truncate)


def keep_the_own_part_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore where the epoch ends in the leader's log."""

    def own_end(epochs: LeaderEpochCache, end: int, diverging: tuple[int, int]) -> int:
        return epochs.end_offset_for(diverging[0], end)[1]

    monkeypatch.setattr(LeaderEpochCache, "truncation_offset", own_end)


def append_late_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionFetchState, "is_late", False)
    monkeypatch.setattr(FetchedPartitions, "remove", lambda self, state: None)


def ignore_leader_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch without the last fetched epoch, so that the leader cannot see that the logs diverge."""
    next_request = PartitionFetchState.next_request

    def without_epoch(self: PartitionFetchState, *args: Any) -> Any:
        index, epoch, offset, _, start, size = next_request(self, *args)
        return index, epoch, offset, -1, start, size

    monkeypatch.setattr(PartitionFetchState, "next_request", without_epoch)


@pytest.mark.parametrize(
    ("mistake", "story"),
    [
        (truncate_to_high_watermark, a_committed_record_above_the_high_watermark_of_a_follower),
        (keep_the_own_part_of_the_epoch, a_tail_of_the_former_leader),
        (ignore_leader_epochs, a_tail_of_the_former_leader),
        (append_late_responses, a_response_of_a_former_leader),
    ],
    ids=lambda function: function.__name__,
)
def test_planted_mistakes_are_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        replica_test(story)()
