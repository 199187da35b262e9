"""The positions that followers claim with their Fetch requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.replica.fetch.partition_reads import check_fetch, look_up

if TYPE_CHECKING:
    from kbroker.replica.fetch.fetch_session import FetchSession
    from kbroker.replica.partition import Partition
    from kbroker.replica.replica_manager import ReplicaManager
    from protocol.fast.fetch import FetchRequest


def record_positions(session: FetchSession, request: FetchRequest, partitions: ReplicaManager, now_ms: int) -> None:
    """Record the new positions of a follower; `now_ms` is monotonic. This may complete Produce requests.

    Partitions with an error are skipped here. The response has the error, or the diverging epoch.
    """
    for fetched in list(session.ready):
        if not fetched.is_unrecorded:
            continue
        try:
            partition: Partition | None = fetched.target  # type: ignore[assignment]
            if partition is None or partition.is_closed:
                partition = look_up(session, fetched, partitions)
            if check_fetch(partition, fetched, request) is not None:
                continue
        except KafkaError:
            continue
        fetched.is_unrecorded = False
        partitions.isr_manager.record_follower_fetch(
            partition, request.replica_id, request.replica_epoch, fetched.offset, fetched.log_start_offset, now_ms
        )
