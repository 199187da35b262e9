"""Appends forwarded batches to their target partition: each batch once, however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.queues.closing.forwarded_batches import position_of
from kbroker.queues.waits import wait_until_committed
from kbroker.storage.log.transaction_index import PreparedBatch
from kbroker.storage.producers.producer_state_manager import FIRST_FORWARDER_ID
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment


async def append_forwarded(environment: Environment, partition: Partition, records: bytes) -> int:
    """Append those batches of a forwarder that are not stored yet, and wait until all are committed.

    Returns the position of the forwarder's last batch in the log, which may be later than these. Raises KafkaError; the
    batches may be stored nevertheless.
    """
    if not partition.is_leader or partition.is_closing:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if partition.state.is_under_min_isr:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    headers = list(iter_headers(records))
    if not headers or any(header.producer_id < FIRST_FORWARDER_ID for _, header in headers):
        raise KafkaError(ErrorCode.INVALID_RECORD, "These are not the batches of a closing partition.")
    stored = partition.log.producers.first_of_last_batch(headers[0][1].producer_id)
    last = -1 if stored is None else position_of(*stored)
    batches: list[PreparedBatch] = []
    for at, header in headers:
        position = position_of(header.producer_epoch, header.base_sequence)
        if position > last:
            batches.append((bytearray(records[at : at + header.size]), header, None))
            last = position
    if batches:
        partition.append_batches(batches, environment.clock.now_ms())
    # Also for duplicates: their originals may not be committed, and the forwarder continues after them.
    await wait_until_committed(environment.loop, partition)
    return last
