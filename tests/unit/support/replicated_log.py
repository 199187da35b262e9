"""Logs of a leader with transactions, and what must be equal in the log of a follower."""

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import strategies as st

from kbroker.storage.log.log import Log
from kbroker.storage.log.transaction_index import AbortedTransaction
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import TRANSACTIONAL, BatchHeader, iter_headers, parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.log_lab import NOW, append, batch


class Write(NamedTuple):
    """A batch of a producer, or with `committed` a transaction marker. `gap`: compaction has removed that many offsets
    before it."""

    producer: int
    count: int
    size: int
    transactional: bool
    committed: bool | None
    new_epoch: bool
    gap: int


WRITES = st.lists(
    st.builds(
        Write,
        producer=st.integers(-1, 2),
        count=st.integers(1, 3),
        size=st.sampled_from([0, 20, 300]),
        transactional=st.booleans(),
        committed=st.sampled_from([None, None, True, False]),
        new_epoch=st.booleans(),
        gap=st.sampled_from([0, 0, 0, 1, 7]),
    ),
    min_size=1,
    max_size=25,
)


class Stored(NamedTuple):
    """Batches as the leader has stored them, with their positions and headers."""

    data: bytes
    at: list[tuple[int, BatchHeader]]

    def run(self, first: int, end: int) -> tuple[bytes, list[BatchHeader]]:
        """Return the batches with numbers [first, end)."""
        headers = [header for _, header in self.at[first:end]]
        start = self.at[first][0] if headers else 0
        return self.data[start : start + sum(header.size for header in headers)], headers


def store(writes: Iterable[Write], log: Log | None = None, *, offset: int = 0, epoch: int = 0) -> Stored:
    """Return the batches of a leader's log from `offset` and `epoch` on.

    If `log` is that log they are also appended to it, without gaps. `epoch` is also the epoch of the producers.
    """
    producers, producer_epoch = ProducerStateManager(), epoch
    sequences: dict[int, int] = {}
    parts: list[bytes] = []
    for write in writes:
        epoch += 2 * write.new_epoch
        is_open = write.producer >= 0 and producers.has_open_transaction(write.producer, producer_epoch)
        if write.committed is not None and write.producer >= 0:
            marker = EndTransactionMarker(write.committed, 0)
            data = build_end_marker(marker, write.producer, producer_epoch, NOW + offset)
        else:
            sequence = sequences.get(write.producer, 0)
            known = {"producer_id": write.producer, "producer_epoch": producer_epoch, "base_sequence": sequence}
            transactional = write.producer >= 0 and (write.transactional or is_open)
            data = batch(
                write.count,
                write.size,
                NOW + offset,
                attributes=TRANSACTIONAL if transactional else 0,
                **(known if write.producer >= 0 else {}),
            )
            sequences[write.producer] = sequence + write.count
        if log is not None:
            offset = append(log, data, epoch)
        else:
            offset += write.gap
            stamp(data, offset, epoch)
        header = parse_header(data)
        if header.is_control:
            producers.end_transaction(header, offset, bool(write.committed), 0)
        elif header.producer_id >= 0:
            producers.update(header, offset)
        offset = header.next_offset
        parts.append(bytes(data))
    data_of_all = b"".join(parts)
    return Stored(data_of_all, list(iter_headers(data_of_all)))


def stamp(data: bytearray, offset: int, epoch: int) -> None:
    """Write the offset and the leader epoch of a batch as a leader does."""
    data[0:8] = offset.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")


def state_of(log: Log) -> dict[str, object]:
    """Return what the logs of all replicas have in common, however they were written."""
    transactions = log.producers.transactions
    aborted: list[AbortedTransaction] = []
    for segment in log.segments:
        segment.collect_aborted(0, 1 << 62, True, aborted)
    return {
        "end": log.log_end_offset,
        "content": b"".join(segments_of(log).values()),
        "epochs": log.epochs.entries,
        "producers": sorted(log.producers.freeze()),
        "batches": sorted((entry.producer_id, entry.last_sequence) for entry in log.producers.active()),
        "open": len(transactions),
        "unstable": transactions.first_unstable_offset,
        "aborted": aborted,
        "last aborted": log.last_aborted_offset,
    }


def segments_of(log: Log) -> dict[int, bytes]:
    return {segment.base_offset: log.disk.read(segment.path()) for segment in log.segments}


def feed(log: Log, stored: Stored, cuts: Iterable[int]) -> None:
    """Append all batches that the log has not, in runs that end at the batches with these numbers."""
    first = sum(1 for _, header in stored.at if header.base_offset < log.log_end_offset)
    for cut in [*sorted(cut for cut in cuts if first < cut < len(stored.at)), len(stored.at)]:
        data, headers = stored.run(first, cut)
        assert log.append_as_follower(data, headers, NOW) == (
            headers[-1].next_offset if headers else log.log_end_offset
        )
        first = cut
