"""What a fetch finds: the partitions of its session, read within the limits of the request.

What is in memory is read at once. As soon as something is not, and nothing was found before it, everything from there
on is left to a thread: so partitions that are read from the disk get their turn beside those that are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.replica.fetch.fetch_session import FetchPartition, FetchSession
from kbroker.storage.log.reading.file_slice import FileSlice
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest, FetchResult

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.storage.log.log import Log

READ_UNCOMMITTED, READ_COMMITTED = 0, 1

Results = list[tuple[FetchPartition, FetchResult]]
# (producer id, first offset) of aborted transactions, None when they were not asked for.
Aborted = list[tuple[int, int]] | None
# What a thread has read, or why it could not.
Outcome = tuple[Buffer, Aborted] | KafkaError


class ColdRead(NamedTuple):
    """A read that is left to a thread: offsets from `offset` up to `upper`, at most `limit` bytes. `committed`: with
    what was aborted among them."""

    fetched: FetchPartition
    partition: Partition
    offset: int
    upper: int
    limit: int
    committed: bool


class FetchReadResult:
    """`size` in bytes of records. `urgent`: it is answered even if it is less than was asked for."""

    __slots__ = ("cold", "results", "size", "urgent")

    def __init__(self) -> None:
        self.results: Results = []
        self.size = 0
        self.urgent = False
        self.cold: list[ColdRead] = []


def read(
    session: FetchSession,
    request: FetchRequest,
    budget: int,
    find: Callable[[FetchPartition], Partition],
) -> FetchReadResult:
    """Read what is ready in a session, all of its partitions in its first answer; `budget` bytes or one batch.

    `find` looks for the partition of one that has none; it raises KafkaError. What is not `ready` afterwards listens.
    """
    found = FetchReadResult()
    committed = request.isolation_level == READ_COMMITTED
    whole = not session.incremental
    for fetched in list(session.partitions.values() if whole else session.ready):
        if found.size >= budget and found.size and not whole:
            break
        try:
            partition: Partition = fetched.target or find(fetched)
            if partition.closed:
                # Its topic may have been made again under its name.
                partition = find(fetched)
            diverging = _check(partition, fetched, request)
        except KafkaError as error:
            found.urgent = True
            found.results.append((fetched, failed(fetched, error.code)))
            continue
        if diverging is not None:
            found.urgent = True
            found.results.append((fetched, _result(partition, fetched, request, b"")._replace(diverging=diverging)))
            continue
        upper = partition.last_stable_offset if committed else partition.high_watermark
        if partition.log.offline is not None:
            upper = min(upper, partition.log.readable_end)
        limit = min(fetched.max_bytes, budget - found.size)
        if fetched.offset >= upper or (limit <= 0 and found.size):
            _take(found, session, fetched, partition, request, b"")
            continue
        data: Buffer | FileSlice | None = None
        aborted: Aborted = None
        if not found.cold:
            try:
                data = partition.log.read_or_slice(fetched.offset, max(limit, 0), upper, not found.size)
                if committed and data and fetched.offset <= partition.log.last_aborted_offset:
                    aborted = aborted_in(partition.log, fetched.offset, len(data), wait=False)
                    if aborted is None:
                        data = None
            except KafkaError as error:
                found.urgent = True
                found.results.append((fetched, failed(fetched, error.code)))
                continue
        if data is None and not found.size:
            found.cold.append(ColdRead(fetched, partition, fetched.offset, upper, limit, committed))
        else:
            # What is cold and comes after something that is not has its turn in the next answer.
            _take(found, session, fetched, partition, request, data or b"", aborted)
    return found


def aborted_in(log: Log, offset: int, size: int, wait: bool) -> Aborted:
    """What a reader of committed records is told of aborted ones with `size` bytes; None: it would have to wait."""
    aborted = log.aborted_transactions(offset, size, wait)
    # Consumers sort them by themselves; Kafka gives them in this order too.
    return [(one.producer_id, one.first_offset) for one in aborted] if aborted is not None else None


def _check(partition: Partition, fetched: FetchPartition, request: FetchRequest) -> tuple[int, int] | None:
    """Whether this client may read from here; raises KafkaError with the code for it.

    Gives the epoch and its end offset up to which the client's log agrees with this one, if it told the epoch that
    it has fetched last (KIP-595) and they do not agree up to its offset.
    """
    partition.check_leader(fetched.current_epoch)
    if request.replica_id >= 0:
        # Not one of this partition's replicas: replication comes with the cluster.
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log = partition.log
    if log.offline is not None and fetched.offset >= log.readable_end:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    if fetched.offset < log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if fetched.last_epoch >= 0:
        epoch, end_offset = log.epochs.end_offset_for(fetched.last_epoch, log.log_end_offset)
        if end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < fetched.last_epoch or end_offset < fetched.offset:
            return epoch, end_offset
    if fetched.offset > log.log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return None


def _take(
    found: FetchReadResult,
    session: FetchSession,
    fetched: FetchPartition,
    partition: Partition,
    request: FetchRequest,
    data: Buffer | FileSlice,
    aborted: Aborted = None,
) -> None:
    """The partition's part of the answer, unless it would say what was said before."""
    if data or not session.incremental or fetched.told != told(partition):
        found.size += len(data)
        found.results.append((fetched, _result(partition, fetched, request, data, aborted)))
    elif fetched.offset >= partition.high_watermark:
        fall_silent(session, fetched, partition)


def fall_silent(session: FetchSession, fetched: FetchPartition, partition: Partition) -> None:
    """It has nothing to say until it says so itself."""
    session.ready.pop(fetched, None)
    partition.fetchers[fetched] = None


def told(partition: Partition) -> tuple[int, int]:
    """What an answer tells of a partition besides its records; the last stable offset moves only with these."""
    return partition.high_watermark, partition.log.log_start_offset


def read_cold_blocking(cold: list[ColdRead], budget: int) -> list[Outcome]:
    """Read in a thread, one after another until the budget is used: as many as were read."""
    outcomes: list[Outcome] = []
    size = 0
    for _, partition, offset, upper, limit, committed in cold:
        room = min(limit, budget - size)
        if size and room <= 0:
            break
        try:
            data = partition.log.read_blocking(offset, max(room, 0), upper, not size)
            aborted = aborted_in(partition.log, offset, len(data), wait=True) if committed else None
        except KafkaError as error:
            outcomes.append(error)
            continue
        size += len(data)
        outcomes.append((data, aborted))
    return outcomes


def take_cold(
    found: FetchReadResult, session: FetchSession, request: FetchRequest, outcomes: Sequence[Outcome]
) -> None:
    """Add to what was found what the thread has read; those that it did not reach have their turn later."""
    for number, cold in enumerate(found.cold):
        outcome = outcomes[number] if number < len(outcomes) else (b"", None)
        if isinstance(outcome, KafkaError):
            found.results.append((cold.fetched, failed(cold.fetched, outcome.code)))
        else:
            _take(found, session, cold.fetched, cold.partition, request, *outcome)


def _result(
    partition: Partition,
    fetched: FetchPartition,
    request: FetchRequest,
    data: Buffer | FileSlice,
    aborted: Aborted = None,
) -> FetchResult:
    return FetchResult(
        fetched.index,
        0,
        partition.state.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        aborted or [] if request.isolation_level == READ_COMMITTED else None,
        data,
    )


def failed(fetched: FetchPartition, code: ErrorCode) -> FetchResult:
    """Aborted transactions are none where there is no partition, and null where it refuses, as in Kafka."""
    return FetchResult(fetched.index, code, -1, -1, -1, [] if fetched.target is None else None, b"")
