"""The results of the partitions of a Fetch request, as they are read."""

from kbroker.common import Buffer
from kbroker.replica.fetch.cold_reads import AbortedTransactions, ColdRead
from kbroker.replica.fetch.fetch_session import READ_COMMITTED, FetchPartition, FetchSession
from kbroker.replica.fetch.filter_scan import LookBudget
from kbroker.replica.partition import Partition
from kbroker.storage.log.segment import FileSlice
from protocol.errors import ErrorCode
from protocol.fast.current_leader import CurrentLeader
from protocol.fast.fetch import FetchRequest, FetchResult

PartitionReadResult = tuple[FetchPartition, FetchResult]


class FetchReads:
    """The results for a response. `size`: bytes of records. `must_respond`: the request must not wait for more.

    `is_filtered`: a partition has a read filter; `budget` limits what the response scans, and `size` does not count
    batches that only move a position. `is_throttled`: records were withheld from a follower. `throttled_left`:
    the bytes that throttled replicas may still get; None before the first of them.
    """

    __slots__ = ("budget", "cold", "is_filtered", "is_throttled", "must_respond", "results", "size", "throttled_left")

    def __init__(self) -> None:
        self.results: list[PartitionReadResult] = []
        self.size = 0
        self.must_respond = self.is_throttled = self.is_filtered = False
        self.budget: LookBudget | None = None
        self.cold: list[ColdRead] = []
        self.throttled_left: int | None = None

    def add_error(
        self, fetched: FetchPartition, code: ErrorCode, leader: CurrentLeader | None = None, message: str | None = None
    ) -> None:
        """Add the error of a partition. `message`: the reason, for the broker's log."""
        # As in Kafka, the list of aborted transactions is null, but empty if the log was not looked for or not found.
        is_known = fetched.target is not None and code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED
        aborted: AbortedTransactions = None if is_known else []
        result = FetchResult(fetched.index, code, -1, -1, -1, aborted, b"", None, leader, error_message=message)
        self.results.append((fetched, result))

    def add_read_replica(self, fetched: FetchPartition, partition: Partition, replica: int) -> None:
        """Refer a consumer to a follower (KIP-392)."""
        result = FetchResult(
            fetched.index, 0, partition.high_watermark, partition.last_stable_offset, partition.log.log_start_offset,
            None, b"", preferred_read_replica=replica,
        )  # fmt: skip
        self.results.append((fetched, result))

    def add(
        self,
        session: FetchSession,
        fetched: FetchPartition,
        partition: Partition,
        request: FetchRequest,
        records: Buffer | FileSlice,
        aborted: AbortedTransactions = None,
        diverging: tuple[int, int] | None = None,
        history_start: int | None = None,
    ) -> None:
        """Add a partition, unless the client already knows its state and there are no records (KIP-227).

        `history_start`: where its archive begins, if the records are from there; as in Kafka the log starts there then.
        """
        high_watermark, log_start_offset = partition.state.high_watermark, partition.log.log_start_offset
        is_known = session.is_incremental and fetched.last_sent == (high_watermark, log_start_offset)
        if is_known and not records and diverging is None:
            wait_for_change(session, fetched, partition)
            return
        self.size += len(records)
        if session.is_busy and isinstance(records, Buffer):
            # Other requests use the buffer before this one has its response.
            records = bytes(records)
        result = FetchResult(
            fetched.index,
            0,
            high_watermark,
            partition.last_stable_offset,
            log_start_offset if history_start is None else history_start,
            aborted or [] if request.isolation_level == READ_COMMITTED else None,
            records,
            diverging,
        )
        self.results.append((fetched, result))


def wait_for_change(session: FetchSession, fetched: FetchPartition, partition: Partition) -> None:
    """Remove the partition from the `ready` ones until it notifies the session, unless there is more to read."""
    is_follower = session.replica_id >= 0
    if fetched.offset < (partition.log.log_end_offset if is_follower else partition.state.high_watermark):
        return
    session.ready.pop(fetched, None)
    # A throttle of a follower that has ended may have removed it.
    (partition.replica_fetchers if is_follower else partition.fetchers)[fetched] = None
