"""Snapshots of the pending records on followers, so that a new leader need not replay its whole log.

A follower keeps no pending records in memory. It periodically loads its snapshot, replays what was committed since, and
writes the next one. Nothing is copied from the leader: each broker's snapshot follows from its own log, and is ignored
if the log was truncated below it since (snapshot_file.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.queues.delay.delay_state import DelayState
from kbroker.queues.delay.log_replay import replay_batches
from kbroker.queues.delay.snapshot_file import SnapshotFile
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment

event_log = EventLogger("kbroker.delay")

# How often a follower checks, and how many new bytes make it write a snapshot: a new leader replays about as many. A
# snapshot of a million records has 16 MB, so fewer bytes are not worth a snapshot.
INTERVAL_S = 60.0
MIN_BYTES = 64 << 20
# The pause between two slices, so that the replay of a follower does not use a whole processor.
PAUSE_S = 0.002


class FollowerSnapshots:
    """The snapshots of one partition, while this broker follows its leader."""

    def __init__(self, environment: Environment, partition: Partition) -> None:
        self._environment = environment
        self._partition = partition
        self._snapshot = SnapshotFile(environment, partition.log)
        # The replicated bytes when the last snapshot was written. The first check always writes one: this broker may
        # have the whole log, and no snapshot yet.
        self._bytes = -MIN_BYTES
        self._is_stopped = False
        self._task = PeriodicTask(
            environment,
            "snapshots of delayed records",
            lambda: round(INTERVAL_S * 1000),
            self._check,
            lambda: self._is_following,
        )

    def start(self) -> None:
        self._task.schedule()

    def stop(self) -> None:
        """Stop after the current check."""
        self._is_stopped = True

    async def stop_and_wait(self) -> None:
        self.stop()
        await self._task.stop()

    @property
    def _is_following(self) -> bool:
        return not self._is_stopped and not self._partition.is_leader and not self._partition.is_closed

    async def _check(self) -> None:
        replicated = self._partition.replication_bytes_in
        if not self._is_following or replicated - self._bytes < MIN_BYTES:
            return
        try:
            if await self._advance():
                self._bytes = replicated
        except KafkaError as error:
            # The log was truncated, or retention has removed the segment.
            event_log.info("no snapshot of delayed records", partition=self._partition.tp, reason=error)
        except Exception as error:
            if self._is_following:
                event_log.failure("no snapshot of delayed records", error, partition=self._partition.tp)

    async def _advance(self) -> bool:
        """Replay what is committed, and write the snapshot. Returns False if the role has ended. Raises KafkaError."""
        log, end = self._partition.log, self._partition.high_watermark
        state = await self._snapshot.load() or DelayState(log.log_start_offset)
        while state.next_offset < end:
            if not self._is_following:
                return False
            before = state.next_offset
            await replay_batches(self._environment, log, state, end)
            if state.next_offset == before:
                # Only a batch that is not wholly committed is left.
                break
            await self._environment.sleep(PAUSE_S)
        state.drop_below(log.log_start_offset)
        if state.next_offset > self._snapshot.offset:
            await self._snapshot.write(state)
        return True
