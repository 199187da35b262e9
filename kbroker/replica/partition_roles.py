"""The roles of a partition on this broker: it leads the partition, or it follows the leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER, KafkaError
from kbroker.metadata.image import is_retired
from kbroker.replica.partition_high_watermark import PartitionHighWatermark
from kbroker.replica.partition_state import PartitionState
from kbroker.storage.log.log import Log
from kbroker.storage.recovery.truncation import truncate_fully_and_start_at, truncate_to
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.metadata.image import Forwarding, PartitionRegistration
    from kbroker.replica.partition_extensions import PartitionExtensions


class PartitionRoles(PartitionHighWatermark):
    """The role of a partition, as the metadata image has it.

    `adding_replicas`: the replicas that a reassignment adds. `is_closing`: the leader refuses records, see
    metadata/topics/closing/remove_partitions.py. `forwarding`: the leader forwards records to another partition.
    """

    __slots__ = (
        "_closing_listeners",
        "_deferred_role",
        "_has_leader",
        "_is_truncating",
        "adding_replicas",
        "extensions",
        "forwarding",
        "is_closing",
        "is_retired",
    )  # fmt: skip

    def __init__(self, log: Log, state: PartitionState, is_leader: bool) -> None:
        super().__init__(log, state, is_leader)
        self.adding_replicas: Sequence[int] = ()
        self.extensions: PartitionExtensions | None = None
        self.is_closing = False
        # Called when the partition is no longer closing, or this broker no longer leads it. A dict keeps the order.
        self._closing_listeners: dict[Callable[[], None], None] | None = None
        self.forwarding: Forwarding | None = None
        self.is_retired = False
        self._is_truncating = False
        # On a follower: whether the partition has a leader, as far as this broker knows.
        self._has_leader = False
        # A change of the metadata image during a truncation. It is applied afterwards.
        self._deferred_role: tuple[PartitionRegistration, int, int] | None = None

    # Leadership.

    def begin_epoch(self) -> None:
        """Start the current leader epoch at the log end offset."""
        if self.is_leader:
            self.log.assign_leader_epoch(self.state.leader_epoch)

    def apply_registration(self, registration: PartitionRegistration, node_id: int, now_ms: int) -> None:
        """Apply a change of the metadata image: this broker (`node_id`) becomes or stays the leader or a follower.

        `now_ms` is monotonic. During a truncation the change is deferred until its end.
        """
        self.adding_replicas = registration.adding_replicas
        # Before the role: nothing may be appended in the leader epoch that closes the partition.
        self.is_closing = registration.is_closing
        self.forwarding = registration.forwarding
        if self.is_retired != is_retired(registration):
            self.is_retired = not self.is_retired
            self.notify_fetchers(0)
        if self._is_truncating:
            self._deferred_role = (registration, node_id, now_ms)
        elif registration.leader == node_id:
            self.become_leader(registration, now_ms)
        else:
            self.become_follower(registration)
        if not self.is_closing:
            self._call_closing_listeners()

    def add_closing_listener(self, callback: Callable[[], None]) -> None:
        """Call the listener once, when this closing partition is open again, is removed, or has another leader."""
        if self._closing_listeners is None:
            self._closing_listeners = {}
        self._closing_listeners[callback] = None

    def remove_closing_listener(self, callback: Callable[[], None]) -> None:
        """Undo `add_closing_listener`."""
        if self._closing_listeners is not None:
            self._closing_listeners.pop(callback, None)

    def _call_closing_listeners(self) -> None:
        waiting, self._closing_listeners = self._closing_listeners, None
        for callback in waiting or ():
            callback()

    def become_leader(self, registration: PartitionRegistration, now_ms: int) -> None:
        """Lead a new epoch, or apply a newer ISR of the current one. `now_ms` is monotonic.

        After `resign` only a new epoch makes the broker a leader again.
        """
        state = self.state
        if registration.leader_epoch > state.leader_epoch:
            state.partition_epoch = registration.partition_epoch
            state.begin_leader_epoch(
                registration.leader_epoch, registration.replicas, registration.isr, self.log.log_end_offset, now_ms
            )
            self.is_leader = True
            self.begin_epoch()
            self._configure()
            # Sessions fetch again with the new epoch.
            self.notify_all()
        elif self.is_leader and registration.partition_epoch > state.partition_epoch:
            state.partition_epoch = registration.partition_epoch
            state.update_replicas_and_isr(registration.replicas, registration.isr)
        else:
            return
        # A smaller ISR may commit records (KAFKA-13091).
        self.advance_high_watermark()

    def become_follower(self, registration: PartitionRegistration) -> None:
        """Follow the leader of the registration, if it has one. Waiting requests fail with NOT_LEADER_OR_FOLLOWER."""
        state = self.state
        if (registration.leader_epoch, registration.partition_epoch) <= (state.leader_epoch, state.partition_epoch):
            return
        state.partition_epoch = registration.partition_epoch
        state.begin_follower_epoch(registration.leader_epoch, registration.replicas, registration.isr)
        self._has_leader = registration.leader != NO_LEADER
        self._stop_leading()

    def resign(self) -> None:
        """Become a follower without a leader, because this broker's session has ended. The leader epoch stays."""
        state = self.state
        self._deferred_role = None
        state.begin_follower_epoch(state.leader_epoch, state.replicas, state.isr)
        self._has_leader = False
        self._stop_leading()

    def _stop_leading(self) -> None:
        self.is_leader = False
        self._configure()
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._call_closing_listeners()

    def set_extensions(self, extensions: PartitionExtensions | None) -> None:
        """Called when the replica manager adds the partition, before it has a role."""
        self.extensions = extensions
        self._configure()

    def _configure(self) -> None:
        if self.extensions is not None:
            self.extensions.configure(self)

    def close(self) -> None:
        """Called when the partition is removed from this broker."""
        super().close()
        self._configure()
        self._call_closing_listeners()

    def check_leader(self, current_epoch: int) -> None:
        """Raise KafkaError if this is not the leader in the epoch that the client knows (KIP-320; -1 for any)."""
        if current_epoch != -1:
            self.check_epoch(current_epoch)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_reader(self, current_epoch: int) -> None:
        """Raise KafkaError if this replica may not serve consumers. A follower without a leader may not."""
        self.check_epoch(current_epoch)
        if not self.is_leader and not self._has_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, current_epoch: int) -> None:
        """Raise KafkaError if the client knows another leader epoch than this broker (KIP-320; -1 for any)."""
        if current_epoch == -1 or current_epoch == self.state.leader_epoch:
            return
        if current_epoch < self.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Replication.

    def check_follower(self, replica_id: int, broker_epoch: int) -> None:
        """Raise KafkaError if a broker may not fetch as a follower of this partition."""
        follower = self.state.followers.get(replica_id)
        if follower is None:
            # The leader does not know of a reassignment yet: the follower retries.
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if broker_epoch < follower.broker_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def record_follower_fetch(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Record the positions of a follower's Fetch in the current leader epoch; `now_ms` is monotonic.

        The high watermark may advance, and the follower may join the ISR. A Fetch of a former broker epoch is ignored.
        """
        if self.isr_manager is not None:
            self.isr_manager.record_follower_fetch(
                self, replica_id, broker_epoch, fetch_offset, log_start_offset, now_ms
            )

    async def follower_truncate(self, offset: int) -> None:
        """Remove the records from `offset` on. Changes of the metadata image apply afterwards."""
        await self._truncate(offset, truncate_to(self.log, offset))

    async def follower_restart_at(self, offset: int) -> None:
        """Remove all records, and continue at `offset`: the leader has deleted what is missing."""
        await self._truncate(offset, truncate_fully_and_start_at(self.log, offset))

    async def _truncate(self, offset: int, truncation: Awaitable[None]) -> None:
        self._is_truncating = True
        try:
            # Before the records disappear.
            self.state.high_watermark = min(self.state.high_watermark, offset)
            await truncation
        finally:
            # A cancelled caller does not stop the truncation.
            self.log.when_truncated(self._on_truncated)

    def _on_truncated(self) -> None:
        state, log = self.state, self.log
        state.high_watermark = max(min(state.high_watermark, log.log_end_offset), log.log_start_offset)
        self._uncommitted_bytes = 0
        log.update_high_watermark(state.high_watermark)
        self._is_truncating = False
        deferred, self._deferred_role = self._deferred_role, None
        if deferred is not None and not self.is_closed:
            self.apply_registration(*deferred)
