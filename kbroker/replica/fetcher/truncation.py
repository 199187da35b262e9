"""Finds the offset to which a follower truncates its log when it diverges from the leader's (KIP-101, 279, 595)."""

from __future__ import annotations

from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache


def truncation_offset(epochs: LeaderEpochCache, log_end_offset: int, diverging: tuple[int, int]) -> int:
    """Return the offset up to which this log may agree with the leader's. The next fetch checks that.

    `diverging`: the (epoch, end offset) of the leader's log for the largest epoch up to the last fetched one. If this
    log has no record of that epoch, everything after its own largest earlier epoch differs: the high watermark plays no
    part, since committed records may lie above it and uncommitted ones below.
    """
    leader_epoch, leader_end_offset = diverging
    own_epoch, own_end_offset = epochs.end_offset_for(leader_epoch, log_end_offset)
    if own_end_offset < 0:
        return min(leader_end_offset, log_end_offset)
    if own_epoch != leader_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, leader_end_offset, log_end_offset)
