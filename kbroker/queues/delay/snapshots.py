"""Snapshots of the pending records of a log, which save replaying the whole log, and the replay of the rest.

The log is the only source of truth: a snapshot that may belong to another log is ignored. Nothing is copied from the
leader: each broker's snapshot follows from its own log. A follower keeps no pending records in memory. So that a new
leader need not replay its whole log, it periodically loads its snapshot, replays what was committed since, and writes
the next one.
"""

from kbroker.common import KafkaError
from kbroker.config.queue_configs import levels_ms
from kbroker.queues.delay.delay_batches import NO_EFFECTS, effects_of, has_effects, is_transactional
from kbroker.queues.delay.delay_state import DelayState
from kbroker.queues.delay.stored_records import READ_BYTES, read_batches, read_body
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.runtime.turns import yield_if_due
from kbroker.storage.log.log import Log
from protocol.errors import MalformedError
from protocol.records.batch import iter_headers

event_log = EventLogger("kbroker.delay")

# Records of a committed transaction that become pending without a pause.
COMMITTED_AT_ONCE = 64


async def replay_batches(environment: Environment, log: Log, state: DelayState, end_offset: int) -> None:
    """Replay some batches from `state.next_offset` on, all of them below `end_offset`. Raises KafkaError."""
    if state.next_offset < log.log_start_offset:
        state.next_offset = log.log_start_offset
    view = await read_batches(environment, log, state.next_offset, READ_BYTES, end_offset)
    levels = levels_ms(log.config.kbroker_delay_levels)
    for pos, header in iter_headers(view):
        if header.next_offset <= state.next_offset:
            continue
        effects = NO_EFFECTS
        if has_effects(header):
            batch = view[pos : pos + header.size]
            try:
                body = await read_body(environment, batch, header)
                effects = effects_of(batch, body, header, levels)
            except MalformedError as error:
                event_log.error("batch of delayed records skipped", partition=log.tp, reason=error)
        if effects.committed:
            while state.commit_some(header.producer_id, COMMITTED_AT_ONCE):
                yield_if_due()
        if not is_transactional(header):
            state.add_some(effects.added)
            effects = effects._replace(added=[])
        if header.next_offset > state.next_offset:
            # Otherwise `on_appended` has replayed the batch during a pause.
            state.replay(header, effects)
        yield_if_due()


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
