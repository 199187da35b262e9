"""ReplicaFetcher: fetches the partitions that follow one leader (Kafka: ReplicaFetcherThread).

One Fetch request is in flight at a time, in an incremental session. A request names the partitions that have changed,
and a response has those with records, another high watermark or an error, so an idle partition costs nothing. A
partition that cannot be fetched for now (it backs off, or is truncated) is removed from the session, since the leader
would otherwise respond to every request at once. A partition that can be fetched again does not wait until the leader
has records for another one: the next request is sent at once, and the leader completes the waiting one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any

from kbroker.common import KafkaError
from kbroker.replica.fetcher.fetched_partitions import FetchedPartitions
from kbroker.replica.fetcher.follower_throttle import FollowerThrottle
from kbroker.replica.fetcher.leader_end_point import FETCH_VERSION, LeaderEndPoint
from kbroker.replica.fetcher.partition_fetch_state import PartitionFetchState, backoff_ms
from kbroker.replica.fetcher.replica_fetch_session import PartitionKey, ReplicaFetchSession
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode, MalformedError, known_error
from protocol.fast.replica_fetch import (
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    decode_replica_fetch_response,
    encode_replica_fetch_request,
)

if TYPE_CHECKING:
    from asyncio import Future, Handle, Task

    from kbroker.config import BrokerConfig
    from kbroker.replica.quota.replication_quota import ReplicationQuota
    from kbroker.runtime.environment import Environment

event_log = EventLogger("kbroker.replica")

# The most partitions that one request names: the leader handles it at once, in some milliseconds. The rest follows in
# the next requests, which do not wait for records.
MAX_PARTITIONS_PER_REQUEST = 128
# After this time in nanoseconds, the processing of a response lets others use the event loop.
SLICE_NS = 500_000
# The clock is read once for this number of partitions, and after one with this many bytes, which take a part of a
# millisecond.
PARTITIONS_PER_CLOCK_READ = 16
BYTES_PER_CLOCK_READ = 64 * 1024

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class ReplicaFetcher:
    """`replica` returns the id and the broker epoch of this broker. The fetcher runs from `start` to `stop`."""

    def __init__(
        self,
        environment: Environment,
        leader_id: int,
        leaders: LeaderEndPoint,
        replica: Callable[[], tuple[int, int]],
        config: Callable[[], BrokerConfig],
        quota: ReplicationQuota,
    ) -> None:
        self.leader_id = leader_id
        self.states: dict[PartitionKey, PartitionFetchState] = {}
        self.throttle = FollowerThrottle(environment, self, quota)
        self._environment = environment
        self._leaders = leaders
        self._replica = replica
        self._config = config
        self._session = ReplicaFetchSession()
        # The partitions that the next requests name.
        self._changed: dict[PartitionKey, PartitionFetchState] = {}
        self._fetched = FetchedPartitions(environment, self, leaders, replica, config)
        self._failures = 0
        self._stopped = False
        self._wakeup: Future[None] | None = None
        # Whether the leader may keep the request in flight until it has records.
        self._is_waiting = False
        self._supersede_handle: Handle | None = None
        self._request_number = 0
        # The request that has superseded the waiting one, with its number.
        self._superseding: tuple[int, Task[memoryview]] | None = None
        self._task: Task[None] | None = None
        self._background: set[Task[None]] = set()

    # Partitions.

    def add(self, state: PartitionFetchState) -> None:
        """Fetch a partition from now on."""
        self.states[state.key] = state
        self._changed[state.key] = state
        self._wake()

    def remove(self, state: PartitionFetchState) -> None:
        """Stop fetching a partition. A response that arrives later is ignored for it."""
        self._exclude(state)
        if self.states.get(state.key) is state:
            del self.states[state.key]
        state.cancel_timer()

    def changed(self, state: PartitionFetchState) -> None:
        """Name the partition in the next request: its fetch offset or log start offset has changed."""
        if self.states.get(state.key) is state and not state.is_paused:
            self._changed[state.key] = state

    def pause(self, state: PartitionFetchState) -> None:
        """Do not fetch the partition until `resume`."""
        state.is_paused = True
        self._exclude(state)

    def resume(self, state: PartitionFetchState) -> None:
        state.is_paused = False
        state.timer = None
        if self.states.get(state.key) is state:
            self._changed[state.key] = state
            self._wake()

    def back_off(self, state: PartitionFetchState) -> None:
        """Pause the partition for its backoff."""
        state.failures += 1
        self.pause(state)
        delay_ms = backoff_ms(state.failures, self._config().replica_fetch_backoff_ms)
        state.timer = self._environment.loop.call_later(delay_ms / 1000, self.resume, state)

    def _exclude(self, state: PartitionFetchState) -> None:
        if self.states.get(state.key) is state:
            self._changed.pop(state.key, None)
            self._session.forget(state.key)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work on one partition beside the fetches. `stop` waits for it."""
        task = self._environment.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The loop.

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._run())

    async def stop(self) -> None:
        """Stop fetching. Waits for truncations in progress; a request in flight is abandoned."""
        self._stopped = True
        self.throttle.stop()
        for state in list(self.states.values()):
            self.remove(state)
        self._wake()
        self._cancel_superseding()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        for work in list(self._background):
            await work

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
        elif self._is_waiting and self._supersede_handle is None:
            # Once for all partitions of a change of the metadata image.
            self._supersede_handle = self._environment.loop.call_soon(self._supersede)

    def _supersede(self) -> None:
        self._supersede_handle = None
        if self._is_waiting and self._superseding is None and not self._stopped:
            request = self._build_request()
            if request is not None:
                sent = self._environment.loop.create_task(self._send(request))
                self._superseding = (self._request_number, sent)

    async def _run(self) -> None:
        while not self._stopped:
            try:
                if self._superseding is not None:
                    (number, sent), self._superseding = self._superseding, None
                    self._is_waiting = True
                    if self._changed:
                        self._wake()
                    frame = await sent
                elif self._fetched.syncing:
                    await self._fetched.wait_for_syncs()
                    continue
                else:
                    request = self._build_request()
                    if request is None:
                        await self._wait()
                        continue
                    number = self._request_number
                    frame = await self._send(request)
                self._is_waiting = False
                await self._process(decode_replica_fetch_response(frame), number)
                # Its buffer receives the next response.
                del frame
                self._failures = 0
            except (KafkaError, MalformedError) as error:
                await self._recover(error)
            except Exception as error:
                event_log.failure("replica fetch failed", error, leader=self.leader_id)
                await self._recover(error)

    def _send(self, request: ReplicaFetchRequest) -> Coroutine[Any, Any, memoryview]:
        self._is_waiting = request.max_wait_ms > 0
        timeout_ms = request.max_wait_ms + self._config().replica_socket_timeout_ms
        body = encode_replica_fetch_request(request)
        return self._leaders.fetch(self.leader_id, FETCH_VERSION, [body], timeout_ms)

    async def _recover(self, error: Exception) -> None:
        """Start a new session after a backoff: it is unknown what the leader has processed."""
        if not self._failures:
            event_log.info("leader cannot be fetched from", leader=self.leader_id, reason=error)
        self._failures += 1
        self._is_waiting = False
        self._reset_session(keep_id=True)
        delay_ms = backoff_ms(self._failures, self._config().replica_fetch_backoff_ms)
        # A partition that follows the leader in a new epoch ends the backoff: the leader may have been restarted.
        timer = self._environment.loop.call_later(delay_ms / 1000, self._wake)
        await self._wait()
        timer.cancel()

    async def _wait(self) -> None:
        """Wait until there may be something to fetch."""
        self._wakeup = self._environment.loop.create_future()
        await self._wakeup
        self._wakeup = None

    def _reset_session(self, *, keep_id: bool) -> None:
        self._session.reset(keep_id=keep_id)
        self._cancel_superseding()
        # Those that were not named yet come first.
        for key, state in self.states.items():
            if not state.is_paused:
                self._changed.setdefault(key, state)

    def _cancel_superseding(self) -> None:
        """Abandon the second request, which belongs to the session that ends."""
        if self._supersede_handle is not None:
            self._supersede_handle.cancel()
            self._supersede_handle = None
        superseding, self._superseding = self._superseding, None
        if superseding is not None:
            _, sent = superseding
            if not sent.cancel() and not sent.cancelled():
                # It has failed like the first one.
                sent.exception()

    # Requests and responses.

    def _build_request(self) -> ReplicaFetchRequest | None:
        """Return the next request; None while there is nothing to fetch."""
        if self.throttle.quota.samples:
            self.throttle.before_request(self._changed.values(), self.states.values())
        session, config, states = self._session, self._config(), self._changed
        if len(states) > MAX_PARTITIONS_PER_REQUEST:
            states = dict(islice(states.items(), MAX_PARTITIONS_PER_REQUEST))
            for key in states:
                del self._changed[key]
        else:
            self._changed = {}
        named = [(key, state) for key, state in states.items() if not self._fetched.is_held_for_sync(state)]
        if not named and session.is_empty:
            # The leader closes the session, if there is one, with the next request.
            session.reset(keep_id=True)
            return None
        self._request_number += 1
        number = self._request_number
        replica_id, replica_epoch = self._replica()
        session_id, session_epoch = session.begin_request()
        topics, forgotten = session.add(
            [(key, state.next_request(number, config.replica_fetch_max_bytes)) for key, state in named]
        )
        return ReplicaFetchRequest(
            replica_id,
            replica_epoch,
            # The response to the first request has the session's id, which a superseding request needs.
            0 if self._changed or not session_epoch else config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            session_id,
            session_epoch,
            topics,
            forgotten,
        )

    async def _process(self, response: ReplicaFetchResponse, number: int) -> None:
        """Process the response to the request `number`."""
        code = response.error_code
        if code:
            if code not in SESSION_ERRORS:
                raise KafkaError(known_error(code))
            # The leader has evicted the session, or does not know it since it was restarted.
            self._reset_session(keep_id=code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        if not self._session.on_response(response.session_id):
            self._reset_session(keep_id=False)
        environment, states, apply = self._environment, self.states, self._fetched.apply
        mono_ns = environment.clock.mono_ns
        now_ms, slice_end_ns = environment.clock.now_ms(), mono_ns() + SLICE_NS
        for count, fetched in enumerate(response.partitions, 1):
            state = states.get((fetched.topic_id, fetched.partition))
            if state is not None and not state.is_paused and state.request_number <= number:
                if state.is_late:
                    self._on_late_response(state)
                else:
                    apply(state, fetched, now_ms)
            is_long = count % PARTITIONS_PER_CLOCK_READ == 0 or len(fetched.records) >= BYTES_PER_CLOCK_READ
            if is_long and mono_ns() >= slice_end_ns:
                await environment.yield_to_loop()
                now_ms, slice_end_ns = environment.clock.now_ms(), mono_ns() + SLICE_NS

    def _on_late_response(self, state: PartitionFetchState) -> None:
        """Drop a response that does not belong to the current leader epoch and fetch offset, and fetch again."""
        if state.partition.leader_epoch == state.leader_epoch:
            self.changed(state)
        else:
            # The partition's role changes after a truncation in progress.
            self.back_off(state)
