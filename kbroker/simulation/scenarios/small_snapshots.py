"""Snapshots of pending records and idempotency keys after a few records instead of thousands.

A run has too few records for the limits of a broker, which are no configs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.queues import derived_state_manager
from kbroker.queues.delay import delivery, follower_snapshots, snapshot_file

_LIMITS = (
    (snapshot_file, "WORTHWHILE_OFFSETS", 20),
    (delivery, "SNAPSHOT_INTERVAL_MS", 500),
    (follower_snapshots, "INTERVAL_S", 0.5),
    (follower_snapshots, "MIN_BYTES", 4096),
    (derived_state_manager, "SNAPSHOT_BYTES", 4096),
)


@contextmanager
def small_snapshots() -> Iterator[None]:
    """Set the limits for the time of a run."""
    before = [(module, name, getattr(module, name)) for module, name, _ in _LIMITS]
    for module, name, value in _LIMITS:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
