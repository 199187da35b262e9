"""The high watermark counts every replica of the maximal ISR in the current leader epoch, and never goes back."""

from kbroker.replica.partition_state import PartitionState

LAG_MS = 30_000
NOW_MS = 1_000_000


def leading(
    isr: list[int], *, replicas: tuple[int, ...] = (1, 2, 3), epoch: int = 5, end: int = 0, min_isr: int = 1
) -> PartitionState:
    """Return the state of broker 1, which begins to lead with a log of `end` records, all of them committed."""
    state = PartitionState(1, epoch - 1, isr, high_watermark=end, min_insync_replicas=min_isr)
    state.begin_leader_epoch(epoch, replicas, isr, end, NOW_MS)
    return state


def fetch(state: PartitionState, replica: int, offset: int, leader_end: int = 10, now_ms: int = NOW_MS) -> None:
    state.followers[replica].record_fetch(100 + replica, offset, 0, leader_end, now_ms)


def test_without_followers_the_leaders_records_are_committed_at_once() -> None:
    state = PartitionState(1, leader_epoch=0, isr=[1])
    assert state.followers == {}
    assert state.advance_high_watermark(5)
    assert state.high_watermark == 5
    assert not state.advance_high_watermark(5)
    assert not state.advance_high_watermark(3)
    assert state.high_watermark == 5


def test_the_slowest_in_sync_replica_decides() -> None:
    state = leading([1, 2, 3])
    assert not state.advance_high_watermark(10)
    fetch(state, 2, 10)
    assert not state.advance_high_watermark(10)
    fetch(state, 3, 4)
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 4
    fetch(state, 3, 2)
    assert not state.advance_high_watermark(10)
    assert state.high_watermark == 4
    state.update_replicas_and_isr([1, 2, 3], [1, 2])
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 10


def test_a_claim_counts_only_in_its_leader_epoch() -> None:
    """Between the epochs another broker may have led, and the followers have truncated their logs."""
    state = leading([1, 2, 3])
    fetch(state, 2, 10)
    fetch(state, 3, 10)
    state.begin_leader_epoch(7, [1, 2, 3], [1, 2, 3], 10, NOW_MS)
    assert not state.advance_high_watermark(10)
    fetch(state, 2, 10)
    assert not state.advance_high_watermark(10)
    fetch(state, 3, 10)
    assert state.advance_high_watermark(10)


def test_the_last_claim_counts_even_if_it_is_lower() -> None:
    """A follower that has lost its tail does not have what it claimed before."""
    state = leading([1, 2, 3])
    fetch(state, 2, 10)
    fetch(state, 2, 3)
    fetch(state, 3, 10)
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 3


def test_a_replica_outside_the_isr_does_not_count() -> None:
    state = leading([1, 2])
    fetch(state, 2, 10)
    fetch(state, 3, 1)
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 10


def test_a_replica_counts_from_the_proposal_to_add_it() -> None:
    """The controller may have stored the new ISR already, so the added replica may be the next leader."""
    state = leading([1, 2])
    fetch(state, 2, 10)
    fetch(state, 3, 5)
    state.propose([1, 2, 3])
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 5
    fetch(state, 3, 8)
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 8
    state.commit_isr([1, 2, 3], 4)
    assert (state.isr, state.partition_epoch, state.proposal) == ([1, 2, 3], 4, None)
    assert not state.advance_high_watermark(10)


def test_a_replica_counts_until_the_controller_has_removed_it() -> None:
    state = leading([1, 2, 3])
    fetch(state, 2, 10)
    fetch(state, 3, 5)
    state.propose([1, 2])
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 5
    state.commit_isr([1, 2], 4)
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 10


def test_the_high_watermark_waits_for_a_replica_that_is_joining() -> None:
    state = leading([1, 2])
    fetch(state, 2, 10)
    fetch(state, 3, 6)
    state.followers[3].is_joining = True
    state.update_counted()
    assert state.advance_high_watermark(10)
    assert state.high_watermark == 6


def test_the_high_watermark_does_not_advance_below_the_effective_min_isr() -> None:
    state = leading([1, 2, 3], min_isr=2)
    fetch(state, 2, 10)
    fetch(state, 3, 10)
    state.update_replicas_and_isr([1, 2, 3], [1])
    assert state.is_under_min_isr
    assert not state.advance_high_watermark(10)
    state.update_replicas_and_isr([1, 2, 3], [1, 2])
    assert not state.is_under_min_isr
    assert state.advance_high_watermark(10)


def test_the_effective_min_isr_is_at_most_the_number_of_replicas() -> None:
    state = leading([1], replicas=(1,), min_isr=2)
    assert not state.is_under_min_isr
    assert state.advance_high_watermark(10)
    state = leading([1], replicas=(1, 2), min_isr=3)
    assert state.is_under_min_isr
    state.set_min_insync_replicas(1)
    assert not state.is_under_min_isr


def test_a_replica_joins_with_everything_up_to_the_high_watermark() -> None:
    state = leading([1, 2])
    fetch(state, 2, 8)
    state.advance_high_watermark(10)
    fetch(state, 3, 7)
    assert not state.can_join(state.followers[3], 10)
    fetch(state, 3, 8)
    assert state.can_join(state.followers[3], 10)
    assert not state.can_join(state.followers[2], 10)
    state.propose([1, 2, 3])
    assert not state.can_join(state.followers[3], 10)


def test_a_replica_joins_with_everything_up_to_the_start_of_the_leader_epoch() -> None:
    """The new leader's high watermark may be lower than that of the former leader, which acknowledged more."""
    state = PartitionState(1, 4, [1, 2], high_watermark=3)
    state.begin_leader_epoch(5, [1, 2, 3], [1, 2], 9, NOW_MS)
    fetch(state, 3, 8)
    assert not state.can_join(state.followers[3], 9)
    fetch(state, 3, 9)
    assert state.can_join(state.followers[3], 9)


def test_below_min_isr_a_replica_joins_with_the_whole_log() -> None:
    state = leading([1], min_isr=2)
    fetch(state, 2, 9)
    assert not state.can_join(state.followers[2], 10)
    fetch(state, 2, 10)
    assert state.can_join(state.followers[2], 10)


def test_a_replica_leaves_after_the_lag_time() -> None:
    state = leading([1, 2, 3], end=10)
    # Both have replica.lag.time.max.ms for their first fetch.
    assert state.out_of_sync_replicas(10, NOW_MS + LAG_MS, LAG_MS) == []
    assert state.out_of_sync_replicas(10, NOW_MS + LAG_MS + 1, LAG_MS) == [2, 3]
    fetch(state, 2, 10)
    fetch(state, 3, 9)
    # A claim equal to the log end is caught up for ever.
    assert state.out_of_sync_replicas(10, NOW_MS + 10 * LAG_MS, LAG_MS) == [3]


def test_a_replica_that_never_is_at_the_log_end_stays_if_it_follows_the_appends() -> None:
    state = leading([1, 2])
    for n in range(10):
        # Each fetch is from the log end of the fetch before.
        fetch(state, 2, 10 * n, 10 * (n + 1), NOW_MS + n * LAG_MS)
        assert state.out_of_sync_replicas(10 * (n + 1), NOW_MS + n * LAG_MS, LAG_MS) == []
    fetch(state, 2, 95, 110, NOW_MS + 10 * LAG_MS)
    assert state.out_of_sync_replicas(110, NOW_MS + 10 * LAG_MS, LAG_MS) == [2]


def test_an_append_after_a_long_idle_time_makes_no_replica_lag() -> None:
    """Followers send nothing for an idle partition, so their last fetch may be long ago."""
    state = leading([1, 2, 3], end=10)
    fetch(state, 2, 10)
    fetch(state, 3, 9)
    later_ms = NOW_MS + 100 * LAG_MS
    state.mark_caught_up(11, later_ms)
    assert state.out_of_sync_replicas(11, later_ms + LAG_MS, LAG_MS) == [3]
    state.mark_caught_up(12, later_ms + LAG_MS)
    assert state.out_of_sync_replicas(12, later_ms + LAG_MS + 1, LAG_MS) == [2, 3]


def test_a_replica_leaves_by_its_distance() -> None:
    """With replica.lag.max.messages a replica that is near and fetches stays, however long it is not caught up."""
    state = leading([1, 2, 3], end=100)
    state.set_lag_max_messages(10)
    later_ms = NOW_MS + 5 * LAG_MS
    fetch(state, 2, 90, 100, later_ms)
    fetch(state, 3, 89, 100, later_ms)
    assert state.out_of_sync_replicas(100, later_ms, LAG_MS) == [3]
    # At once, although it was caught up a moment ago.
    fetch(state, 3, 100, 100, later_ms)
    assert state.out_of_sync_replicas(100, later_ms, LAG_MS) == []
    assert state.out_of_sync_replicas(111, later_ms, LAG_MS) == [2, 3]
    # A replica that does not fetch leaves after the time, unless it has everything.
    assert state.out_of_sync_replicas(100, later_ms + LAG_MS + 1, LAG_MS) == [2]
    state.set_lag_max_messages(-1)
    assert state.out_of_sync_replicas(100, later_ms, LAG_MS) == [2]


def test_a_replica_joins_within_the_distance() -> None:
    state = leading([1])
    state.set_lag_max_messages(10)
    fetch(state, 2, 89, 100)
    assert not state.can_join(state.followers[2], 100)
    fetch(state, 2, 90, 100)
    assert state.can_join(state.followers[2], 100)


def test_only_one_proposal_at_a_time() -> None:
    state = leading([1, 2])
    state.propose([1, 2, 3])
    assert state.out_of_sync_replicas(10, NOW_MS + 10 * LAG_MS, LAG_MS) == []
    state.withdraw_proposal()
    assert state.maximal_isr == {1, 2}
    assert state.out_of_sync_replicas(10, NOW_MS + 10 * LAG_MS, LAG_MS) == [2]


def test_a_follower_has_no_view_of_the_replicas() -> None:
    state = leading([1, 2, 3])
    state.begin_follower_epoch(6, [1, 2, 3], [2, 3])
    assert state.followers == {}
    assert (state.leader_epoch, state.isr) == (6, [2, 3])
