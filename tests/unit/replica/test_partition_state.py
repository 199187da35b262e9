"""The high watermark counts every in-sync replica and never goes back."""

from kbroker.replica.partition_state import PartitionState


def test_alone_the_leaders_claim_is_committed_at_once() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    assert state.advance(5)
    assert state.high_watermark == 5
    assert not state.advance(5)
    assert not state.advance(3)
    assert state.high_watermark == 5


def test_the_slowest_in_sync_replica_decides() -> None:
    state = PartitionState(1, leader_epoch=3, isr=[1, 2, 3])
    assert not state.advance(10)
    state.follower_at(2, 10)
    assert not state.advance(10)
    state.follower_at(3, 4)
    assert state.advance(10)
    assert state.high_watermark == 4
    state.follower_at(3, 2)
    assert not state.advance(10)
    state.become_leader(4, [1, 2])
    assert state.advance(10)
    assert state.high_watermark == 10


def test_a_replica_outside_the_isr_does_not_count() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    state.follower_at(9, 100)
    assert state.followers == {}
    assert state.advance(1)


def test_min_insync_replicas() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    assert state.enough_in_sync(1)
    assert not state.enough_in_sync(2)
