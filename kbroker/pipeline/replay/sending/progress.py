"""Determines how many of a replay's records a target partition has, after any failure of its producer or broker.

A record's *position* is its index among the replay's records for its target partition, from 0. A replay uses one
producer id and gives each record the sequence number of its position, so the partition's producer state shows how far
the replay is. Brokers remove that state after producer.id.expiration.ms, measured by the records' own timestamps, so a
replay of old records can lose it at the next check. In that case the progress is read from the replay's batches in the
log.
"""

from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.client.cluster import ClusterClient
from kbroker.pipeline.replay.client.partition_log import EARLIEST, LATEST, find_last_batch, last_sequence, list_offset

MAX_SEQUENCE = 0x7FFFFFFF
SEQUENCES = MAX_SEQUENCE + 1


class Progress(NamedTuple):
    """`position` records of the replay have offsets below `offset` in the target partition."""

    position: int
    offset: int


class TargetStart(NamedTuple):
    """The end offset of a target partition when the replay was planned, and whether the partition was empty."""

    offset: int
    was_empty: bool


def sequence_at(position: int) -> int:
    """Return the sequence number of the record at a position; 0 follows the largest."""
    return position & MAX_SEQUENCE


def position_after_sequence(sequence: int, max_records: int) -> int:
    """Return the position that follows the record with this sequence number.

    Sequence numbers repeat after 2^31 records: the result is the candidate closest to `max_records`, the number of
    offsets since the replay's start.
    """
    position = sequence_at(sequence + 1) or SEQUENCES
    return position + max(0, max_records + SEQUENCES // 2 - position) // SEQUENCES * SEQUENCES


def read_progress(
    cluster: ClusterClient, producer_id: int, target: TopicPartition, start: TargetStart, known: Progress
) -> Progress:
    """Read from the broker how far the replay is in a target partition. `known`: earlier progress.

    Raises OSError and BrokerError, and PipelineError if it can no longer be determined.
    """
    # The end is read first: a batch that is appended in between is then searched the next time.
    end = list_offset(cluster, target, LATEST)
    sequence = last_sequence(cluster, producer_id, target)
    if end < known.offset:
        raise PipelineError(
            f"{target} ends at offset {end}, before it ended at {known.offset}: the broker has lost records, or the "
            f"topic was created again"
        )
    if sequence is not None:
        return Progress(position_after_sequence(sequence, end - start.offset), end)
    log_start = list_offset(cluster, target, EARLIEST)
    batch = find_last_batch(cluster, producer_id, target, max(known.offset, log_start), end)
    if batch is not None:
        last = sequence_at(batch.base_sequence + batch.record_count - 1)
        return Progress(position_after_sequence(last, end - start.offset), end)
    if log_start <= known.offset:
        return Progress(known.position, end)
    if start.was_empty:
        # Records that were deleted from this partition can only be the replay's own.
        return Progress(end - start.offset, end)
    raise PipelineError(
        f"{target}: records from offset {known.offset} on were deleted, so it is unknown how many records of the "
        f"replay were there"
    )
