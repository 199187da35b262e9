"""The partitions of one fetcher. A leader's response makes them append, truncate, adopt offsets, or back off."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kbroker.common import Buffer, KafkaError
from kbroker.interbroker.peers import Channel, Peers
from kbroker.replica.fetcher.replica_fetch_session import (
    CorruptBatchesError,
    PartitionKey,
    ReplicaFetchSession,
    check_batches,
)
from kbroker.runtime.event_log import EventLogger
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError, known_error
from protocol.fast.replica_fetch import ReplicaFetchResult
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.records.batch import BatchHeader, parse_header

if TYPE_CHECKING:
    from asyncio import Future, Task, TimerHandle

    from kbroker.config import BrokerConfig
    from kbroker.replica.partition import Partition
    from kbroker.replica.replication_throttle import ReplicationQuota
    from kbroker.runtime.environment import Environment
    from protocol.fast.replica_fetch import ReplicaFetchPartition

FETCH_VERSION = 18
LIST_OFFSETS_VERSION = 9


class LeaderEndPoint:
    """Sends requests to leaders. Fetches have a connection of their own for each leader.

    Both methods raise KafkaError if the leader did not respond in time.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, broker_id: int, version: int, body: Sequence[Buffer], timeout_ms: int) -> memoryview:
        """Send a Fetch request. Returns the body of the response, in a buffer that nothing else uses."""
        return await self._peers.request_raw(
            broker_id, ApiKey.FETCH, version, body, channel=Channel.FETCH, timeout_ms=timeout_ms
        )

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest, timeout_ms: int) -> ListOffsetsResponse:
        response = await self._peers.request(broker_id, request, LIST_OFFSETS_VERSION, timeout_ms=timeout_ms)
        return cast(ListOffsetsResponse, response)


# The first backoff of a partition or of a connection. It doubles up to replica.fetch.backoff.ms: most errors end as
# soon as both brokers have the same metadata, some milliseconds later.
FIRST_BACKOFF_MS = 20
# Timestamps in ListOffsets.
LATEST, EARLIEST = -1, -2


def backoff_ms(failures: int, max_ms: int) -> int:
    """Return the backoff after a number of consecutive failures."""
    return min(max_ms, FIRST_BACKOFF_MS << min(failures - 1, 20))


class PartitionFetchState:
    """One partition that follows `leader_id` in `leader_epoch`. A change of either creates a new state.

    `requested`: the (leader epoch, fetch offset) that the leader's session has since the request `request_number`. A
    response to an earlier request, or one that arrives after either has changed, is late (KIP-320).
    `lag`: the number of committed records that the leader had and this replica did not, after the last response; -1
    before the first one.
    `is_paused`: the partition is not fetched, while it backs off, is truncated or waits for a sync.
    """

    __slots__ = (
        "failures", "is_paused", "key", "lag", "leader_epoch", "leader_id", "partition", "request_number",
        "requested", "timer",
    )  # fmt: skip

    def __init__(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        self.partition = partition
        self.key: PartitionKey = (partition.topic_id, partition.tp.partition)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.requested: tuple[int, int] | None = None
        self.request_number = 0
        self.is_paused = False
        self.failures = 0
        self.lag = -1
        # Ends the backoff.
        self.timer: TimerHandle | None = None

    def next_request(self, request_number: int, max_bytes: int) -> ReplicaFetchPartition:
        """Return the partition's row of the next request, and expect the response to it."""
        log = self.partition.log
        self.request_number = request_number
        self.requested = (self.leader_epoch, log.log_end_offset)
        return (
            self.key[1], self.leader_epoch, log.log_end_offset, log.epochs.latest, log.log_start_offset, max_bytes,
        )  # fmt: skip

    @property
    def is_late(self) -> bool:
        """Whether the leader epoch or the fetch offset has changed since the request."""
        return self.requested != (self.partition.leader_epoch, self.partition.log.log_end_offset)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


event_log = EventLogger("kbroker.replica")

# These end when the brokers have the same metadata.
EXPECTED_ERRORS = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)


class FetchedPartitions:
    """`changed`: the partitions that the next requests name. `syncing`: those whose next fetch waits for a sync,
    because their topic has flush.before.ack: the offset of a fetch claims everything below it.

    `wake` is called when a partition can be fetched. `replica` returns the id and the broker epoch of this broker.
    """

    def __init__(
        self,
        environment: Environment,
        leaders: LeaderEndPoint,
        replica: Callable[[], tuple[int, int]],
        config: Callable[[], BrokerConfig],
        quota: ReplicationQuota,
        wake: Callable[[], None],
    ) -> None:
        self.session = ReplicaFetchSession()
        self.states: dict[PartitionKey, PartitionFetchState] = {}
        self.changed: dict[PartitionKey, PartitionFetchState] = {}
        self.syncing: set[PartitionFetchState] = set()
        self._environment = environment
        self._leaders = leaders
        self._replica = replica
        self._config = config
        self._quota = quota
        self._wake = wake
        self._all_synced: Future[None] | None = None
        # Changes of logs that are in progress.
        self._changes: set[Task[None]] = set()

    def add(self, state: PartitionFetchState) -> None:
        """Fetch a partition from now on."""
        self.states[state.key] = state
        self.changed[state.key] = state
        self._wake()

    def remove(self, state: PartitionFetchState) -> None:
        """Stop fetching a partition. A response that arrives later is ignored for it."""
        self._exclude(state)
        if self.states.get(state.key) is state:
            del self.states[state.key]
        state.cancel_timer()

    def mark_changed(self, state: PartitionFetchState) -> None:
        """Name the partition in the next request: its fetch offset or log start offset has changed."""
        if self.states.get(state.key) is state and not state.is_paused:
            self.changed[state.key] = state

    def pause(self, state: PartitionFetchState) -> None:
        """Do not fetch the partition until `resume`."""
        state.is_paused = True
        self._exclude(state)

    def resume(self, state: PartitionFetchState) -> None:
        state.is_paused = False
        state.timer = None
        if self.states.get(state.key) is state:
            self.changed[state.key] = state
            self._wake()

    def back_off(self, state: PartitionFetchState) -> None:
        """Pause the partition for its backoff."""
        state.failures += 1
        self.pause(state)
        delay_ms = backoff_ms(state.failures, self._config().replica_fetch_backoff_ms)
        state.timer = self._environment.loop.call_later(delay_ms / 1000, self.resume, state)

    def _exclude(self, state: PartitionFetchState) -> None:
        if self.states.get(state.key) is state:
            self.changed.pop(state.key, None)
            self.session.forget(state.key)

    def reset_session(self, *, keep_id: bool) -> None:
        """Name all partitions in the next requests. Those that were not named yet come first."""
        self.session.reset(keep_id=keep_id)
        for key, state in self.states.items():
            if not state.is_paused:
                self.changed.setdefault(key, state)

    # Responses.

    def apply(self, state: PartitionFetchState, fetched: ReplicaFetchResult, now_ms: int) -> None:
        """Apply a response to the last request for this partition."""
        code = fetched.error_code
        if state.is_late:
            self._on_late_response(state)
        elif code:
            self._on_error(state, code)
        elif fetched.diverging is not None:
            self._truncate(state, fetched.diverging, fetched.log_start_offset)
        else:
            try:
                self._append(state, fetched, now_ms)
            except (CorruptBatchesError, MalformedError) as error:
                # Fetched again after a backoff: the bytes may have been damaged on their way.
                self._warn(state, "leader has sent corrupt batches", error)
                self.back_off(state)
            except KafkaError as error:
                self._warn(state, "fetched records not appended", error)
                if state.partition.log.health.offline is None:
                    self.back_off(state)
                else:
                    # The log accepts nothing until the next start.
                    self.pause(state)

    def _on_late_response(self, state: PartitionFetchState) -> None:
        """Drop a response that does not belong to the current leader epoch and fetch offset, and fetch again."""
        if state.partition.leader_epoch == state.leader_epoch:
            self.mark_changed(state)
        else:
            # The partition's role changes after a truncation in progress.
            self.back_off(state)

    def _on_error(self, state: PartitionFetchState, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._change_log(state, self._move_into_range(state))
            return
        if code not in EXPECTED_ERRORS:
            self._warn(state, "leader cannot be fetched from", KafkaError(known_error(code)))
        self.back_off(state)

    def _warn(self, state: PartitionFetchState, message: str, error: Exception) -> None:
        if not state.failures:
            event_log.warning(message, partition=state.partition.tp, leader=state.leader_id, reason=error)

    # Appends.

    def _append(self, state: PartitionFetchState, fetched: ReplicaFetchResult, now_ms: int) -> None:
        partition, records = state.partition, fetched.records
        log_start_before, end_offset = partition.log.log_start_offset, partition.log.log_end_offset
        headers: list[BatchHeader] = []
        if records:
            if log_start_before == end_offset and parse_header(records).base_offset < end_offset:
                self._restart_within_batch(state, fetched, now_ms)
                return
            headers = check_batches(records, end_offset, state.leader_epoch)
            size = sum([header.size for header in headers])
            if size < len(records):
                records = records[:size]
        partition.append_as_follower(records, headers, fetched.high_watermark, fetched.log_start_offset, now_ms)
        if headers and partition.is_follower_throttled:
            self._quota.record(len(records), self._environment.clock.mono_ms())
        state.failures = 0
        log = partition.log
        state.lag = fetched.high_watermark - log.log_end_offset if fetched.high_watermark > log.log_end_offset else 0
        if log.log_start_offset != log_start_before:
            # The next fetch claims that the records are deleted, which must hold after a crash, too.
            self._change_log(state, log.store_log_start())
        elif headers and partition.flush_before_ack and log.recovery_point < log.log_end_offset:
            self._wait_for_sync(state)
        elif headers:
            self.mark_changed(state)

    def _restart_within_batch(self, state: PartitionFetchState, fetched: ReplicaFetchResult, now_ms: int) -> None:
        """Append to an empty log that starts within the first batch, as the leader's log may after DeleteRecords.

        The log has to start at that batch first, which then cannot be fetched a second time.
        """
        partition, records = state.partition, memoryview(bytes(fetched.records))
        base_offset = parse_header(records).base_offset
        if parse_header(records).next_offset <= partition.log.log_end_offset:
            raise CorruptBatchesError(f"a batch at offset {base_offset} instead of {partition.log.log_end_offset}")

        async def restart_and_append() -> None:
            headers = check_batches(records, base_offset, state.leader_epoch)
            await partition.follower_restart_at(base_offset)
            if not self._is_outdated(state):
                size = sum([header.size for header in headers])
                offsets = fetched.high_watermark, fetched.log_start_offset
                partition.append_as_follower(records[:size], headers, *offsets, now_ms)
                await partition.log.store_log_start()

        self._change_log(state, restart_and_append())

    def is_held_for_sync(self, state: PartitionFetchState) -> bool:
        """Return whether the partition must not be fetched now, because it has earlier records that are not synced."""
        partition = state.partition
        if not partition.flush_before_ack or partition.log.recovery_point >= partition.log.log_end_offset:
            return False
        self.pause(state)
        partition.on_synced(partition.log.log_end_offset, partial(self._release, state))
        return True

    def _release(self, state: PartitionFetchState, code: ErrorCode) -> None:
        if code:
            self.back_off(state)
        else:
            self.resume(state)

    def _wait_for_sync(self, state: PartitionFetchState) -> None:
        self.syncing.add(state)
        state.partition.on_synced(state.partition.log.log_end_offset, partial(self._on_synced, state))

    def _on_synced(self, state: PartitionFetchState, code: ErrorCode) -> None:
        self.syncing.discard(state)
        if code:
            self.back_off(state)
        else:
            self.mark_changed(state)
        if not self.syncing and self._all_synced is not None and not self._all_synced.done():
            self._all_synced.set_result(None)

    async def wait_for_syncs(self) -> None:
        """Wait until the fetched records of all partitions are synced."""
        self._all_synced = self._environment.loop.create_future()
        await self._all_synced

    # Truncation.

    def _truncate(self, state: PartitionFetchState, diverging: tuple[int, int], leader_log_start: int) -> None:
        partition, log = state.partition, state.partition.log
        offset = log.epochs.truncation_offset(log.log_end_offset, diverging)
        change, removed_from = partition.follower_truncate, offset
        message = "log diverges from the leader's, is truncated"
        if offset <= leader_log_start:
            # The leader knows no epochs below its log start offset, so records below it may differ. Unlike Apache
            # Kafka, this follower does not keep them.
            offset = leader_log_start
            change, removed_from = partition.follower_restart_at, log.log_start_offset
            message = "log diverges from the leader's, starts again"
        fields = {
            "partition": partition.tp, "leader": state.leader_id, "to": offset, "log_end_offset": log.log_end_offset,
            "leader_epoch": diverging[0], "leader_end_offset": diverging[1],
        }  # fmt: skip
        if removed_from < log.log_end_offset:
            event_log.info(message, **fields)
        else:  # this broker led in an epoch without appending a record
            event_log.debug("leader epochs without records removed", **fields)
        self._change_log(state, change(offset))

    async def _move_into_range(self, state: PartitionFetchState) -> None:
        """Truncate the log to an offset that the leader has. Called when the leader does not have the fetch offset."""
        partition = state.partition
        start = await self._list_offset(state, EARLIEST)
        end = await self._list_offset(state, LATEST)
        if self._is_outdated(state):
            return
        log_end = partition.log.log_end_offset
        fields = {
            "partition": partition.tp, "leader": state.leader_id, "log_end_offset": log_end, "leader_start": start,
            "leader_end": end,
        }  # fmt: skip
        if end < log_end:
            # Records beyond the leader's end are those of an unclean election.
            event_log.warning("log ends beyond the leader's, is truncated", **fields)
            await partition.follower_truncate(end)
        elif start > log_end:
            event_log.info("log ends before the leader's begins, starts again there", **fields)
            await partition.follower_restart_at(start)
        else:
            # The leader has the offset by now, or does not know the epoch of the last record here.
            detail = f"the leader has refused offset {log_end}, though its log has {start} to {end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)

    async def _list_offset(self, state: PartitionFetchState, timestamp: int) -> int:
        """Return the start (EARLIEST) or the end offset (LATEST) of the leader's log. Raises KafkaError."""
        row = ListOffsetsPartition(
            partition_index=state.key[1], current_leader_epoch=state.leader_epoch, timestamp=timestamp
        )
        topic = ListOffsetsTopic(name=state.partition.tp.topic, partitions=[row])
        request = ListOffsetsRequest(replica_id=self._replica()[0], topics=[topic])
        timeout_ms = self._config().replica_socket_timeout_ms
        response = await self._leaders.list_offsets(state.leader_id, request, timeout_ms)
        result = response.topics[0].partitions[0]
        if result.error_code:
            raise KafkaError(known_error(result.error_code))
        return result.offset

    def _is_outdated(self, state: PartitionFetchState) -> bool:
        return state.partition.leader_epoch != state.leader_epoch or state.partition.is_closed

    def _change_log(self, state: PartitionFetchState, change: Coroutine[Any, Any, None]) -> None:
        """Pause the partition, change its log, then fetch again. Backs off if the change fails."""

        async def run() -> None:
            try:
                await change
            except (KafkaError, OSError, CorruptBatchesError) as error:
                self._warn(state, "log cannot be truncated", error)
                self.back_off(state)
            except Exception as error:
                event_log.failure("log cannot be truncated", error, partition=state.partition.tp)
                self.back_off(state)
            else:
                self.resume(state)

        self.pause(state)
        task = self._environment.loop.create_task(run())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def wait_for_changes(self) -> None:
        """Wait for changes of logs in progress."""
        for task in list(self._changes):
            await task
