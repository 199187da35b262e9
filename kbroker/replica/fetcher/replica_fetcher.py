"""ReplicaFetcher: fetches the partitions that follow one leader (Kafka: ReplicaFetcherThread).

One Fetch request is in flight at a time, in an incremental session. A request names the partitions that have changed,
and a response has those with records, another high watermark or an error, so an idle partition costs nothing. A
partition that cannot be fetched for now (it backs off, or is truncated) is removed from the session, since the leader
would otherwise respond to every request at once. A partition that can be fetched again does not wait until the leader
has records for another one: the next request is sent at once, and the leader completes the waiting one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from kbroker.common import NO_LEADER, KafkaError
from kbroker.replica.fetcher.fetched_partitions import (
    FETCH_VERSION,
    FetchedPartitions,
    LeaderEndPoint,
    PartitionFetchState,
    backoff_ms,
)
from kbroker.replica.replication_throttle import follower_quota, should_follower_throttle
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode, MalformedError, known_error
from protocol.fast.replica_fetch import (
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    decode_replica_fetch_response,
    encode_replica_fetch_request,
)

if TYPE_CHECKING:
    from asyncio import Future, Handle, Task, TimerHandle

    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import PartitionRegistration
    from kbroker.replica.partition import Partition
    from kbroker.replica.replication_throttle import ReplicationQuota
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

# A changed rate applies to partitions that already wait after at most this time, as does a changed list of replicas.
MAX_WAIT_MS = 1_000

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class FollowerThrottle:
    """The follower's side of the throttle, for one fetcher. Partitions are paused until the quota allows more bytes."""

    def __init__(self, environment: Environment, partitions: FetchedPartitions, quota: ReplicationQuota) -> None:
        self.quota = quota
        self._environment = environment
        self._partitions = partitions
        # When all partitions are checked next (monotonic).
        self._next_look_ms = 0
        self._paused: list[PartitionFetchState] = []
        # Resumes them.
        self._timer: TimerHandle | None = None

    def before_request(self, named: Iterable[PartitionFetchState], fetched: Iterable[PartitionFetchState]) -> None:
        """Pause the partitions that must not be fetched now.

        Called while the quota has samples. `named`: partitions in the next request. `fetched`: all partitions of the
        fetcher. These are in the leader's session, so they are checked when the quota is first exceeded, then once a
        second.
        """
        now_ms = self._environment.clock.mono_ms()
        if not self.quota.is_exceeded(now_ms):
            self._next_look_ms = now_ms
            return
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + MAX_WAIT_MS
            named = fetched
        for state in list(named):
            if state.is_paused or not should_follower_throttle(state.partition, state.lag, self.quota, now_ms):
                continue
            self._partitions.pause(state)
            self._paused.append(state)
        self._set_timer(now_ms)

    def _set_timer(self, now_ms: int) -> None:
        if self._paused and self._timer is None:
            delay_ms = min(self.quota.allowed_at_ms(now_ms) - now_ms, MAX_WAIT_MS)
            self._timer = self._environment.loop.call_later(delay_ms / 1000, self._resume)

    def _resume(self) -> None:
        """Resume the partitions that may be fetched: all of them, unless the timer has fired early (MAX_WAIT_MS)."""
        self._timer = None
        now_ms = self._environment.clock.mono_ms()
        paused, self._paused = self._paused, []
        for state in paused:
            if should_follower_throttle(state.partition, state.lag, self.quota, now_ms):
                self._paused.append(state)
            else:
                self._partitions.resume(state)
        self._set_timer(now_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._paused.clear()


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
        self.partitions = FetchedPartitions(environment, leaders, replica, config, quota, self._wake)
        self._throttle = FollowerThrottle(environment, self.partitions, quota)
        self._environment = environment
        self._leaders = leaders
        self._replica = replica
        self._config = config
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

    # The loop.

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._run())

    async def stop(self) -> None:
        """Stop fetching. Waits for truncations in progress; a request in flight is abandoned."""
        self._stopped = True
        self._throttle.stop()
        for state in list(self.partitions.states.values()):
            self.partitions.remove(state)
        self._wake()
        self._cancel_superseding()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        await self.partitions.wait_for_changes()

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
                    if self.partitions.changed:
                        self._wake()
                    frame = await sent
                elif self.partitions.syncing:
                    await self.partitions.wait_for_syncs()
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
        self.partitions.reset_session(keep_id=keep_id)
        self._cancel_superseding()

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
        partitions, session, config = self.partitions, self.partitions.session, self._config()
        if self._throttle.quota.samples:
            self._throttle.before_request(partitions.changed.values(), partitions.states.values())
        states = partitions.changed
        if len(states) > MAX_PARTITIONS_PER_REQUEST:
            states = dict(islice(states.items(), MAX_PARTITIONS_PER_REQUEST))
            for key in states:
                del partitions.changed[key]
        else:
            partitions.changed = {}
        named = [(key, state) for key, state in states.items() if not partitions.is_held_for_sync(state)]
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
            0 if partitions.changed or not session_epoch else config.replica_fetch_wait_max_ms,
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
        if not self.partitions.session.on_response(response.session_id):
            self._reset_session(keep_id=False)
        environment, states, apply = self._environment, self.partitions.states, self.partitions.apply
        mono_ns = environment.clock.mono_ns
        now_ms, slice_end_ns = environment.clock.now_ms(), mono_ns() + SLICE_NS
        for count, fetched in enumerate(response.partitions, 1):
            state = states.get((fetched.topic_id, fetched.partition))
            if state is not None and not state.is_paused and state.request_number <= number:
                apply(state, fetched, now_ms)
            is_long = count % PARTITIONS_PER_CLOCK_READ == 0 or len(fetched.records) >= BYTES_PER_CLOCK_READ
            if is_long and mono_ns() >= slice_end_ns:
                await environment.yield_to_loop()
                now_ms, slice_end_ns = environment.clock.now_ms(), mono_ns() + SLICE_NS


class ReplicaFetcherManager:
    """`broker_epoch` returns the epoch of this broker's registration, with which the leaders check its fetches."""

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        broker_epoch: Callable[[], int],
        leaders: LeaderEndPoint,
        config: Callable[[], BrokerConfig],
    ) -> None:
        # The quota of all fetches of this broker as a follower.
        self.quota = follower_quota(config)
        self._environment = environment
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._leaders = leaders
        self._config = config
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._states: dict[Partition, PartitionFetchState] = {}
        self._stopped = False

    def update(self, partition: Partition, registration: PartitionRegistration) -> None:
        """Fetch the partition from its leader in this epoch, or not at all if it has none or is led here."""
        state = self._states.get(partition)
        leader, epoch = registration.leader, registration.leader_epoch
        if state is not None and (state.leader_id, state.leader_epoch) == (leader, epoch):
            return
        self.remove(partition)
        if leader in (NO_LEADER, self._node_id) or partition.is_closed or self._stopped:
            return
        if partition.log.health.offline is not None:
            # A fetch would claim records that the disk may not have.
            return
        state = self._states[partition] = PartitionFetchState(partition, leader, epoch)
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                self._environment, leader, self._leaders, self._replica, self._config, self.quota
            )
            fetcher.start()
        fetcher.partitions.add(state)

    def remove(self, partition: Partition) -> None:
        """Stop fetching a partition. A response that arrives later is not applied to it."""
        state = self._states.pop(partition, None)
        if state is not None:
            self._fetchers[state.leader_id].partitions.remove(state)

    def states(self) -> list[PartitionFetchState]:
        """Return the partitions that are followed."""
        return list(self._states.values())

    def _replica(self) -> tuple[int, int]:
        return self._node_id, self._broker_epoch()

    async def stop(self) -> None:
        """Stop all fetchers. Waits for truncations in progress."""
        self._stopped = True
        for fetcher in self._fetchers.values():
            await fetcher.stop()
        self._states.clear()
