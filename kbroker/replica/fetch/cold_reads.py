"""Reads of records that are only on disk: a thread does them, for one request after another."""

from typing import NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.replica.fetch.fetch_session import FetchPartition
from kbroker.replica.fetch.filter_scan import FilteredRead, LookBudget, read_filtered
from kbroker.replica.fetch.read_filter import Filtered
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import Clock
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import find_aborted_transactions, read_blocking

# (producer id, first offset) of aborted transactions; None for a request with READ_UNCOMMITTED.
AbortedTransactions = list[tuple[int, int]] | None
# The results of a thread.
ColdReadResult = tuple[Buffer, AbortedTransactions] | FilteredRead | KafkaError


class ColdRead(NamedTuple):
    """A read for a thread: at most `max_bytes` from `offset` on, below `end_offset`.

    `filtered`: the partition has a read filter.
    """

    fetched: FetchPartition
    partition: Partition
    offset: int
    end_offset: int
    max_bytes: int
    read_committed: bool
    filtered: Filtered | None = None


def read_cold_blocking(
    cold_reads: list[ColdRead], max_bytes: int, clock: Clock, is_large: bool, copies: bool
) -> list[ColdReadResult]:
    """Read one partition after another in a thread, up to `max_bytes`. Returns the results of those that it read.

    These are none if the first one has a batch with more decompressed bytes than several threads may have at a time:
    then call it with `is_large`. Without `copies`, the thread's next read may reuse the buffers of the records.
    """
    results: list[ColdReadResult] = []
    size = 0
    budget = LookBudget.for_thread(clock, is_large)
    for _, partition, offset, end_offset, partition_max_bytes, read_committed, filtered in cold_reads:
        limit = min(partition_max_bytes, max_bytes - size)
        if size and limit <= 0:
            break
        if filtered is not None and budget.is_used_up(clock):
            break
        try:
            if filtered is not None:
                found = read_filtered(
                    partition.log, filtered, offset, max(limit, 0), end_offset, read_committed, budget, clock,
                    wait=True,
                )  # fmt: skip
                if found is None:
                    break
                size += len(found.records)
                results.append(found._replace(records=bytes(found.records)) if copies else found)
                continue
            records = read_blocking(partition.log, offset, max(limit, 0), end_offset, not size)
            aborted = aborted_transactions(partition.log, offset, len(records), wait=True) if read_committed else None
        except KafkaError as error:
            results.append(error)
            continue
        size += len(records)
        results.append((bytes(records) if copies else records, aborted))
    return results


def aborted_transactions(log: Log, offset: int, size: int, wait: bool) -> AbortedTransactions:
    """Return the aborted transactions in `size` bytes from `offset` on; None if that would wait for the disk."""
    found = find_aborted_transactions(log, offset, size, wait)
    # In the order of their markers, as Kafka sends them; consumers sort them.
    return None if found is None else [(transaction.producer_id, transaction.first_offset) for transaction in found]
