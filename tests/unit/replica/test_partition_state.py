"""The high watermark counts every in-sync replica and never goes back."""

from kbroker.replica.partition_state import PartitionState


def test_without_followers_the_leaders_records_are_committed_at_once() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    assert state.advance_high_watermark(5)
    assert state.high_watermark == 5
    assert not state.advance_high_watermark(5)
    assert not state.advance_high_watermark(3)
    assert state.high_watermark == 5


def test_the_slowest_in_sync_replica_decides() -> None:
    state = PartitionState(1, leader_epoch=3, isr=[1, 2, 3])
    assert not state.advance_high_watermark(10)
    state.update_follower(2, 10)
    assert not state.advance_high_watermark(10)
    state.update_follower(3, 4)
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 4
    state.update_follower(3, 2)
    assert not state.advance_high_watermark(10)
    state.update_leader_and_isr(4, [1, 2])
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 10


def test_a_replica_outside_the_isr_does_not_count() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    state.update_follower(9, 100)
    assert state.followers == {}
    assert state.advance_high_watermark(1)


def test_min_insync_replicas() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    assert not state.is_under_min_isr(1)
    assert state.is_under_min_isr(2)
