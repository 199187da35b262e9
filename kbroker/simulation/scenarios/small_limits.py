"""Lower limits for the time of a run, which has too few records, partitions and elements for those of a broker.

They are constants, not configs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.queues import derived_state_manager
from kbroker.queues.delay import delivery, follower_snapshots, pending_records, snapshot_file, stored_records
from kbroker.replica import assigned_partitions
from kbroker.replica.fetch import fetch_manager, fetch_session
from kbroker.replica.produce import marker_appends
from kbroker.runtime import turns
from kbroker.server import connection
from protocol.fast import produce

# Snapshots of pending records and idempotency keys after a few records instead of thousands.
_SNAPSHOTS = (
    (snapshot_file, "WORTHWHILE_OFFSETS", 20),
    (delivery, "SNAPSHOT_INTERVAL_MS", 500),
    (follower_snapshots, "INTERVAL_S", 0.5),
    (follower_snapshots, "MIN_BYTES", 4096),
    (derived_state_manager, "SNAPSHOT_BYTES", 4096),
)
# Records are read ahead in several parts, from few batches at a time, of which some do not fit.
_READ_AHEAD = (
    (pending_records, "CHUNK_RECORDS", 8),
    (stored_records, "FIRST_WINDOW", 2),
    (stored_records, "MAX_WINDOW", 16),
    (stored_records, "MAX_READY_BYTES", 6_000),
    (stored_records, "READ_BYTES", 512),
    (stored_records, "SMALL_READ_BYTES", 64),
    (stored_records, "NEIGHBOURS", 2),
    (stored_records, "NEAR_OFFSETS", 8),
)
# Almost all requests, and changes of several partitions, are handled in turns of one or two elements.
_TURNS = (
    (connection, "LARGE_REQUEST_BYTES", 32),
    (produce, "MAX_ELEMENTS_AT_ONCE", 2),
    (turns, "TURN_ELEMENTS", 2),
    (fetch_session, "MANY_PARTITIONS", 1),
    (fetch_manager, "MANY_PARTITIONS", 1),
    (marker_appends, "PARTITIONS_AT_ONCE", 1),
    (assigned_partitions, "CLOSED_AT_ONCE", 1),
)


@contextmanager
def small_limits(*, small_slices: bool) -> Iterator[None]:
    limits = _SNAPSHOTS + _READ_AHEAD + (_TURNS if small_slices else ())
    before = [(module, name, getattr(module, name)) for module, name, _ in limits]
    for module, name, value in limits:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
