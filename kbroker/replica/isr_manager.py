"""Expands and shrinks the ISRs of the partitions that this broker leads, with AlterPartition requests (KIP-497)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.replication.partition_requests import may_join
from kbroker.replica.partition_state import UNKNOWN_EPOCH, FollowerState
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.errors import ErrorCode, known_error
from protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    BrokerState,
)

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.metadata.image import MetadataDelta, MetadataImage
    from kbroker.replica.partition import Partition
    from kbroker.replica.partition_state import IsrProposal, PartitionState
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.isr")

# How long changes are gathered for one request, in milliseconds.
GATHER_MS = 50
# The wait before a request whose outcome is unknown is repeated, in milliseconds.
RETRY_MS = 500
RECOVERED = 0

Send = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]

# After these errors the change is repeated. All others are final.
RETRIABLE_ERRORS = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class IsrChange(NamedTuple):
    """A proposal for one partition. `isr`: (broker id, broker epoch or -1) of each replica (KIP-903)."""

    partition: Partition
    proposal: IsrProposal
    isr: list[tuple[int, int]]

    @property
    def is_current(self) -> bool:
        """Whether the leader still waits for the outcome."""
        return self.partition.state.proposal is self.proposal


# Called with a change and its outcome.
OnResult = Callable[[IsrChange, AlterPartitionResponsePartition], None]


class AlterPartitionManager:
    """Gathers the changes of all partitions. One request is in flight at a time.

    If the outcome of a request is unknown, the same changes are sent again until they have one: the controller refuses
    those that it has made already with INVALID_UPDATE_VERSION.
    """

    def __init__(
        self, environment: Environment, send: Send, broker_id: int, broker_epoch: Callable[[], int], on_result: OnResult
    ) -> None:
        self._on_result = on_result
        self._environment = environment
        self._send = send
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._waiting: list[IsrChange] = []
        self._task: Task[None] | None = None

    def submit(self, change: IsrChange) -> None:
        """Send a change within 50 ms, or after the request in flight."""
        self._waiting.append(change)
        if self._task is None:
            self._task = self._environment.loop.create_task(self._run())

    async def stop(self) -> None:
        """Drop the changes without a result."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        wait_ms = GATHER_MS
        while self._waiting:
            await self._environment.sleep(wait_ms / 1000)
            changes = [change for change in self._waiting if change.is_current]
            self._waiting = []
            unfinished = await self._send_changes(changes) if changes else []
            self._waiting = unfinished + self._waiting
            wait_ms = RETRY_MS if unfinished else GATHER_MS
        self._task = None

    async def _send_changes(self, changes: list[IsrChange]) -> list[IsrChange]:
        """Send a request and report its results. Returns the changes without a final result."""
        try:
            response = await self._send(self._request(changes))
            if response.error_code:
                raise KafkaError(known_error(response.error_code))
        except KafkaError as error:
            log.warning("ISR changes are repeated", partitions=len(changes), reason=error)
            return changes
        except Exception as error:
            log.failure("AlterPartition failed", error)
            return changes
        results = {
            (topic.topic_id, result.partition_index): result for topic in response.topics for result in topic.partitions
        }
        unfinished = []
        for change in changes:
            result = results.get((change.partition.topic_id, change.partition.tp.partition))
            if result is None or known_error(result.error_code) in RETRIABLE_ERRORS:
                unfinished.append(change)
                continue
            try:
                self._on_result(change, result)
            except Exception as error:
                # The changes of other partitions still need their outcomes.
                log.failure("ISR change not applied", error, partition=change.partition.tp)
        return unfinished

    def _request(self, changes: list[IsrChange]) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        for change in changes:
            topic_id = change.partition.topic_id
            topic = topics.setdefault(topic_id, AlterPartitionRequestTopic(topic_id=topic_id))
            topic.partitions.append(
                AlterPartitionRequestPartition(
                    partition_index=change.partition.tp.partition,
                    leader_epoch=change.proposal.leader_epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=id, broker_epoch=epoch) for id, epoch in change.isr],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=change.proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )


# The controller has not made a change that it refuses with one of these. Nor will a copy of the request that arrives
# late have an effect: a broker that is no longer eligible does not become eligible again in the same broker epoch.
NOT_ATTEMPTED = {ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA}
DEFAULT_LAG_TIME_MAX_MS = 30_000


class IsrManager:
    """One for all partitions of a broker. It does nothing for a lone broker, whose partitions have no followers.

    `shrinks`, `expands`, `failed_updates`: totals since the broker started (Kafka: IsrShrinksPerSec, IsrExpandsPerSec,
    FailedIsrUpdatesPerSec).
    """

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        metadata: MetadataImage,
        partitions: Mapping[TopicPartition, Partition],
    ) -> None:
        self.shrinks = self.expands = self.failed_updates = 0
        self._environment = environment
        self._clock = environment.clock
        self._node_id = node_id
        self._metadata = metadata
        self._partitions = partitions
        self._broker_epoch: Callable[[], int] = lambda: UNKNOWN_EPOCH
        self._lag_time_max_ms: Callable[[], int] = lambda: DEFAULT_LAG_TIME_MAX_MS
        # Requests that wait for the log start offsets of followers: their `check`.
        self._log_start_listeners: dict[Callable[[], None], None] = {}
        self._alter_partition: AlterPartitionManager | None = None
        self._shrinker: PeriodicTask | None = None

    def start(self, send: Send, broker_epoch: Callable[[], int], lag_time_max_ms: Callable[[], int]) -> None:
        """Begin to propose changes. `send` sends a request to the controller. Raises nothing."""
        self._broker_epoch = broker_epoch
        self._lag_time_max_ms = lag_time_max_ms
        self._alter_partition = AlterPartitionManager(
            self._environment, send, self._node_id, broker_epoch, self._on_result
        )
        # As in Kafka, so a follower is removed at most 1.5 times replica.lag.time.max.ms after it has stopped.
        self._shrinker = PeriodicTask(
            self._environment, "ISR shrinking", lambda: max(self._lag_time_max_ms() // 2, 1), self.shrink_all
        )
        self._shrinker.schedule()

    async def stop(self) -> None:
        if self._shrinker is not None:
            await self._shrinker.stop()
        if self._alter_partition is not None:
            await self._alter_partition.stop()

    # Claims of followers.

    def record_follower_fetch(
        self,
        partition: Partition,
        replica_id: int,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """Record the positions of a follower's Fetch (monotonic time). A Fetch of a former broker epoch is ignored."""
        state = partition.state
        follower = state.followers.get(replica_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return
        end_offset = partition.log.log_end_offset
        state.leader_end_offset = end_offset
        has_moved = follower.log_end_offset != fetch_offset
        has_deleted = follower.log_start_offset != log_start_offset
        follower.record_fetch(broker_epoch, fetch_offset, log_start_offset, end_offset, now_ms)
        if replica_id not in state.isr:
            self._maybe_join(partition, follower, now_ms)
        if has_moved:
            partition.advance_high_watermark()
        if has_deleted and self._log_start_listeners:
            self.notify_log_start_listeners()

    # DeleteRecords.

    def add_log_start_listener(self, listener: Callable[[], None]) -> None:
        """Call the listener when the log start offset of a follower, the live brokers or a leader may have changed."""
        self._log_start_listeners[listener] = None

    def remove_log_start_listener(self, listener: Callable[[], None]) -> None:
        self._log_start_listeners.pop(listener, None)

    def notify_log_start_listeners(self) -> None:
        for listener in list(self._log_start_listeners):
            listener()

    # Joining.

    def _maybe_join(self, partition: Partition, follower: FollowerState, now_ms: int) -> None:
        """Propose to add a follower to the ISR, or let the high watermark wait for it if it almost can be added."""
        state, end_offset = partition.state, partition.log.log_end_offset
        is_eligible = self._is_eligible(state, follower)
        # As the leader it must not bring records back that DeleteRecords has deleted while it was away.
        has_deleted = follower.log_start_offset >= partition.log.log_start_offset
        if is_eligible and has_deleted and state.can_join(follower, end_offset):
            self._propose(partition, sorted((*state.isr, follower.broker_id)))
            return
        is_joining = is_eligible and follower.is_caught_up(end_offset, now_ms, self._lag_time_max_ms())
        if is_joining != follower.is_joining:
            follower.is_joining = is_joining
            state.update_counted()

    def _is_eligible(self, state: PartitionState, follower: FollowerState) -> bool:
        # A follower that has never fetched has no broker epoch, and may not join.
        metadata, broker_id, epoch = self._metadata, follower.broker_id, follower.broker_epoch
        if epoch < 0 or not metadata.is_replica_eligible(broker_id, epoch):
            return False
        min_isr = min(state.min_insync_replicas, len(state.replicas))
        return may_join(broker_id, state.isr, metadata.write_health, min_isr)

    # Changes.

    def on_delta(self, delta: MetadataDelta) -> None:
        """Called with a change of the metadata image: brokers may have become eligible, or no longer be."""
        if delta.brokers or delta.fenced_brokers:
            self._reconsider_joins()
        else:
            for change in delta.partitions:
                # A proposal may have ended, for which another follower has waited.
                partition = self._partitions.get(change.tp)
                if partition is not None and _may_expand(partition):
                    self._reconsider_joins_of(partition)
        if self._log_start_listeners:
            # After the partitions have their new roles.
            self._environment.loop.call_soon(self.notify_log_start_listeners)

    def _reconsider_joins(self) -> None:
        for partition in self._partitions.values():
            if _may_expand(partition):
                self._reconsider_joins_of(partition)

    def _reconsider_joins_of(self, partition: Partition) -> None:
        """Add caught-up followers that could not join at their last Fetch, and advance the high watermark.

        They may have no reason for another Fetch.
        """
        state, now_ms = partition.state, self._clock.mono_ms()
        for follower in state.followers.values():
            if follower.broker_id in state.isr:
                continue
            if not follower.is_caught_up(partition.log.log_end_offset, now_ms, self._lag_time_max_ms()):
                # Also one that almost joined, and has stopped fetching since.
                if follower.is_joining:
                    follower.is_joining = False
                    state.update_counted()
            elif follower.log_end_offset == partition.log.log_end_offset or follower.is_joining:
                self._maybe_join(partition, follower, now_ms)
        partition.advance_high_watermark()

    async def shrink_all(self) -> None:
        """Propose to remove the followers that lag behind. Runs every replica.lag.time.max.ms / 2."""
        now_ms, lag_time_max_ms = self._clock.mono_ms(), self._lag_time_max_ms()
        for partition in list(self._partitions.values()):
            state = partition.state
            if not partition.is_leader or not state.followers:
                continue
            removed = state.out_of_sync_replicas(partition.log.log_end_offset, now_ms, lag_time_max_ms)
            if removed:
                self._propose(partition, [id for id in state.isr if id not in removed])
            else:
                self._reconsider_joins_of(partition)

    def _propose(self, partition: Partition, isr: list[int]) -> None:
        if self._alter_partition is None:
            return
        state = partition.state
        proposal = state.propose(isr)
        with_epochs = [(id, self._epoch_of(state.followers.get(id))) for id in isr]
        self._alter_partition.submit(IsrChange(partition, proposal, with_epochs))

    def _epoch_of(self, follower: FollowerState | None) -> int:
        """Return the broker epoch of a replica; -1 (not checked) for one in the ISR that has not fetched yet."""
        return self._broker_epoch() if follower is None else follower.broker_epoch

    def _on_result(self, change: IsrChange, result: AlterPartitionResponsePartition) -> None:
        partition, proposal, _ = change
        state, is_current = partition.state, change.is_current
        if result.error_code:
            if is_current:
                self._on_refusal(partition, proposal, result.error_code)
            return
        former_isr, isr = set(proposal.former_isr), set(result.isr)
        added, removed = isr - former_isr, former_isr - isr
        if result.partition_epoch > proposal.partition_epoch:
            self.expands += bool(added)
            self.shrinks += bool(removed)
            log.info(
                "ISR changed", partition=partition.tp, isr=result.isr, added=sorted(added), removed=sorted(removed)
            )
        # A newer image may have decided about the proposal. One that removes replicas ends only with the image, which
        # has the min.insync.replicas with which the controller has decided whether they remain eligible (KIP-966): with
        # an older value the high watermark might advance without them.
        if is_current and not removed and result.leader_epoch == state.leader_epoch:
            state.commit_isr(result.isr, result.partition_epoch)
            # Another follower may have waited to join.
            self._reconsider_joins_of(partition)

    def _on_refusal(self, partition: Partition, proposal: IsrProposal, error_code: int) -> None:
        self.failed_updates += 1
        code = known_error(error_code)
        if code is ErrorCode.NEW_LEADER_ELECTED:
            # The image ends this leadership.
            log.info("ISR change has moved the leadership", partition=partition.tp, isr=proposal.isr)
            return
        log.info("ISR change refused", partition=partition.tp, isr=proposal.isr, error=code.name)
        if code in NOT_ATTEMPTED:
            partition.state.withdraw_proposal()
            partition.advance_high_watermark()
        # After any other error the controller knows a newer state. Its image ends the proposal.


def _may_expand(partition: Partition) -> bool:
    """Return whether this broker leads the partition and has followers outside the ISR."""
    return partition.is_leader and len(partition.state.isr) <= len(partition.state.followers)
