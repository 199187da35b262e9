"""Mistakes that show when a leader is replaced, and leads again."""

from typing import Any

import pytest

from kbroker.replica.fetch import follower_fetch, partition_reads
from kbroker.replica.fetcher.partition_fetch_state import PartitionFetchState
from kbroker.storage.log.writing.log_truncation import LogTruncation
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.leadership_faults import late_claim, late_response, leader_returns
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces, wrap


@mutation("cluster", [INVARIANT], replicated(late_claim, partitions=3))
def claims_of_former_epochs_count(patch: pytest.MonkeyPatch) -> None:
    """A leader does not check the leader epoch of a follower's Fetch."""

    def check_fetch(original: Any, partition: Any, fetched: Any, request: Any) -> Any:
        if request.replica_id >= 0:
            fetched.current_epoch = partition.leader_epoch
        return original(partition, fetched, request)

    wrap(patch, partition_reads, "check_fetch", check_fetch)
    wrap(patch, follower_fetch, "check_fetch", check_fetch)


@mutation("cluster", [INVARIANT], replicated(late_response, partitions=3))
def late_responses_are_appended(patch: pytest.MonkeyPatch) -> None:
    """A follower appends what it has fetched in a former epoch, before it truncated its log."""

    def next_request(original: Any, state: PartitionFetchState, *arguments: int) -> Any:
        row = original(state, *arguments)
        state.request_number = 0
        return row

    wrap(patch, PartitionFetchState, "next_request", next_request)
    patch.setattr(PartitionFetchState, "is_late", False)


@mutation("cluster", [INVARIANT], replicated(leader_returns, partitions=3))
@replaces(LogTruncation, "_apply")
def truncations_keep_the_epoch_of_the_last_append(original: Any, log: LogTruncation, truncation: Any) -> None:
    """A leader epoch that a truncation has removed is not recorded when its records are appended again."""
    epoch = log._append_epoch
    original(log, truncation)
    log._append_epoch = epoch
