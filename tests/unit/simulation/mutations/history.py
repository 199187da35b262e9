"""Mistakes in serving history from archives."""

from typing import Any

from kbroker.api import k02_list_offsets
from kbroker.common import KafkaError
from kbroker.replica.fetch import partition_reads
from kbroker.replica.history.history_cache import HistoryCache
from kbroker.replica.history.history_manager import HistoryManager
from protocol.errors import ErrorCode
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces
from tests.unit.simulation.mutations.shapes import only

SHORT = only(producers=2, readers=2, members=0, deleters=0)
KILLS = only("kill", producers=2, readers=1, members=0, deleters=0)


@mutation("history", ["skipped poll", "unseen write"], SHORT)
@replaces(partition_reads, "read_history")
def records_at_the_border_are_skipped(real: Any, *arguments: Any) -> int | None:
    """After the end of the archive a consumer misses the first records of the log."""
    offset: int | None = real(*arguments)
    return None if offset is None else offset + 3


@mutation("history", ["skipped poll", "unseen write"], SHORT)
@replaces(HistoryManager, "known_bounds")
def retention_does_not_wait(real: Any, history: Any, partition: Any) -> tuple[int, int]:
    """Retention deletes what is not archived yet."""
    return 0, partition.high_watermark


@mutation("history", ["unseen write"], SHORT)
@replaces(k02_list_offsets, "_look_up_in_archive")
async def the_archive_is_not_looked_up(real: Any, *arguments: Any) -> None:
    """The earliest offset is that of the log."""


@mutation("history", ["inconsistent offset"], SHORT)
@replaces(HistoryCache, "find")
def ranges_of_partitions_are_mixed_up(real: Any, cache: Any, key: Any, *arguments: Any) -> Any:
    """A fetch gets the records of another partition."""
    for other in list(cache._starts):
        found = real(cache, other, *arguments)
        if found is not None:
            return found
    return None


@mutation("cluster-history", [INVARIANT], KILLS)
@replaces(partition_reads, "check_fetch")
def followers_fetch_from_the_archive(real: Any, partition: Any, fetched: Any, request: Any) -> Any:
    """A follower that has missed what retention deleted gets it from the archive, without producers and markers."""
    try:
        return real(partition, fetched, request)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and fetched.offset < partition.log.log_start_offset:
            return None
        raise
