"""The snapshot file of the pending records of a log, which saves replaying the whole log at a start.

The log is the only source of truth: a snapshot that may belong to another log is ignored. The file has the topic id (16
bytes) and the encoded state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.queues.delay.delay_state import DelayState
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

event_log = EventLogger("kbroker.delay")

FILE_NAME = "delayed-records.snapshot"
# Fewer offsets than this are replayed faster than a snapshot is written and read.
WORTHWHILE_OFFSETS = 10_000


class SnapshotFile:
    """`offset`: where the replay begins after a start; 0 without a snapshot."""

    def __init__(self, environment: Environment, log: Log) -> None:
        self.offset = 0
        self._environment = environment
        self._log = log
        self._path = f"{log.directory}/{FILE_NAME}"
        self._written_ms = environment.clock.mono_ms()

    async def load(self) -> DelayState | None:
        """Read the snapshot; None if there is none that belongs to the log."""
        log, environment = self._log, self._environment
        try:
            if not await environment.offload(environment.disk.exists, self._path):
                return None
            data = await environment.offload(environment.disk.read, self._path)
            if data[: len(log.topic_id)] != log.topic_id:
                return None
            state = DelayState.from_snapshot(data, len(log.topic_id))
        except (OSError, ValueError) as error:
            event_log.warning("snapshot of delayed records ignored", partition=log.tp, reason=error)
            return None
        if not log.log_start_offset < state.next_offset <= log.log_end_offset:
            return None
        # With the same leader epoch at the same offset, the logs are the same up to there.
        if log.epochs.epoch_for(state.next_offset - 1) != state.leader_epoch:
            return None
        state.drop_below(log.log_start_offset)
        self.offset = state.next_offset
        return state

    async def write_if_worthwhile(self, state: DelayState, interval_ms: int = 0) -> None:
        """Write a snapshot if it saves enough replay, and the last one is at least `interval_ms` old."""
        now_ms = self._environment.clock.mono_ms()
        if state.next_offset - self.offset >= WORTHWHILE_OFFSETS and now_ms - self._written_ms >= interval_ms:
            await self.write(state)

    async def write(self, state: DelayState) -> None:
        self._written_ms = self._environment.clock.mono_ms()
        offset = state.next_offset
        data = state.to_snapshot(self._log.topic_id)
        try:
            await self._environment.offload(self._environment.disk.write_atomic, self._path, data)
            self.offset = offset
        except OSError as error:
            event_log.warning("snapshot of delayed records not written", partition=self._log.tp, reason=error)
