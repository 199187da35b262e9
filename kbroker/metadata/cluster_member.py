"""A broker's membership in the cluster: it loads the metadata, registers, and campaigns for the controllership."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER, KafkaError
from kbroker.coordination.interface import CoordinationError, NoSpace, SessionExpired, Unavailable
from kbroker.metadata.controller import Controller
from kbroker.metadata.features import OWN_FEATURES, check_supported
from kbroker.metadata.image import BrokerRegistration, DeltaListener, MetadataDelta, MetadataImage, SeenMetadata
from kbroker.metadata.metadata_loader import MetadataLoader
from kbroker.metadata.producer_id_manager import ProducerIdManager
from kbroker.metadata.recovery.deleted_topics import read_deleted_topics
from kbroker.metadata.recovery.log_recovery import advanced, diverges, needs_recovery, unseen_producer_id
from kbroker.metadata.registration import check_same_cluster, check_secret, create_layout, read_secret, register_broker
from kbroker.metadata.store import znodes
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.config import BrokerConfig
    from kbroker.coordination.interface import Coordination
    from kbroker.metadata.recovery.seen_metadata_file import SeenMetadataFile
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

# How long a registered broker waits until the controller unfences it, in seconds. A controller may have to be elected
# first.
MAX_UNFENCING_S = 60.0
RETRY_BACKOFF_S = 0.5


class ClusterMember:
    """A broker in its cluster: the metadata image, the controller (elected or not) and the producer id manager.

    A broker first calls `load`, then opens its logs and binds its listeners, then calls `register`. So it cannot be
    elected as a leader while it recovers. When its session expires, it calls `on_session_lost` and then `rejoin`.
    """

    def __init__(
        self,
        environment: Environment,
        coordination: Coordination,
        node_id: int,
        config: Callable[[], BrokerConfig],
        on_failure: Callable[[BaseException], None],
        seen_file: SeenMetadataFile | None = None,
    ) -> None:
        """`config` returns the broker's current configuration.

        `on_failure` is called when the metadata can no longer be kept up to date; the broker must then stop.
        `seen_file`: where it is remembered how new the metadata are that this broker has seen; None for nowhere.
        """
        self.image = MetadataImage()
        self.loader = MetadataLoader(coordination, environment.loop, self.image, on_failure, self._check_cluster)
        self.controller = Controller(environment, node_id, coordination, self.loader, config)
        self.producer_ids = ProducerIdManager(coordination, environment.loop)
        # The secret with which brokers prove to each other that they belong to this cluster.
        self.secret = b""
        # The epoch of the current registration, 0 before the first.
        self.broker_epoch = 0
        # Whether all partitions have leader epochs that no earlier process has used.
        self.has_new_epochs = True
        # How new the metadata are that this broker has seen, in this process or before.
        self.seen = SeenMetadata()
        self._seen_file = seen_file
        self._node_id = node_id
        self._environment = environment
        self._loop = environment.loop
        self._coordination = coordination
        self._on_failure = on_failure
        # The broker epoch up to which the logs are intact: that of the last registration of this process, or before it
        # that of the last clean shutdown.
        self._last_epoch = -1
        self._registration: BrokerRegistration | None = None
        self._campaigning: Task[None] | None = None
        self._unfenced: Future[None] | None = None
        self._on_registered: list[Callable[[int], None]] = []
        self._balance = PeriodicTask(
            environment,
            "leader balance",
            lambda: config().leader_imbalance_check_interval_seconds * 1000,
            self.controller.replication.balance_leaders,
            lambda: (
                self.controller.is_elected and len(self.image.brokers) > 1 and config().auto_leader_rebalance_enable
            ),
        )
        healing = self.controller.self_healing
        self._healing = PeriodicTask(
            environment, "self-healing", lambda: healing.interval_ms, healing.heal, lambda: healing.is_needed
        )
        self.loader.roles_listeners.append(self._on_delta)

    @property
    def is_unfenced(self) -> bool:
        """Whether the controller has unfenced this broker's current registration. Only then does it have roles."""
        broker = self.image.brokers.get(self._node_id)
        return broker is not None and broker.epoch == self.broker_epoch

    @property
    def has_seen_newer(self) -> bool:
        """Whether this broker has seen changes that the image lacks, and the controller has not unfenced it since."""
        return diverges(self.seen, self.loader.change_log)

    def add_roles_listener(self, listener: Callable[[MetadataDelta], None]) -> None:
        """Call `listener` with every later delta, in the iteration of the loop in which the image changes."""
        self.loader.roles_listeners.append(listener)

    def add_listener(self, listener: DeltaListener) -> None:
        """Await `listener` with every later delta. Listeners are called in the order in which they were added."""
        self.loader.listeners.append(listener)

    def add_registration_listener(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the epoch of each later registration, before the controller knows of it."""
        self._on_registered.append(listener)

    async def wait_for_listeners(self) -> None:
        """Wait until the listeners have processed every change that the image has."""
        await self.loader.wait_for_listeners()

    async def load(
        self,
        on_cluster_id: Callable[[str], Awaitable[None]] | None = None,
        check_new: Callable[[], None] = lambda: None,
    ) -> Collection[bytes]:
        """Load the metadata; create it if the cluster is new. Further changes are loaded after `register`.

        Returns the ids of the topics that were deleted last, for the logs found on disk.

        `on_cluster_id` is awaited first, and may raise; `check_new` before that, if there is no cluster yet: nothing is
        created if it raises. Raises CoordinationError.
        """
        # Without the latest changes, a cluster would seem to be new, and the logs of new topics to belong to no topic.
        await self._coordination.sync()
        cluster_id = await create_layout(self._coordination, self._environment.random, check_new)
        if on_cluster_id is not None:
            await on_cluster_id(cluster_id)
        self.image.cluster_id = cluster_id
        self.secret = await read_secret(self._coordination)
        if self._seen_file is not None:
            self.seen = await self._seen_file.read(cluster_id)
        await self.loader.catch_up()
        return await read_deleted_topics(self._coordination)

    async def _check_cluster(self) -> None:
        await check_same_cluster(self._coordination, self.image.cluster_id)

    async def register(self, broker: BrokerRegistration, max_wait_s: float = 0.0, previous_epoch: int = -1) -> None:
        """Register the broker (its epoch is assigned here) and wait until the controller has unfenced it.

        If there is no controller, this broker campaigns. `previous_epoch`: see register_broker. Raises
        CoordinationError; NodeExists if another session still has this broker id after `max_wait_s` seconds;
        WrongSecret if the other brokers have registered with another secret; UnsupportedFeatures if the cluster uses
        features of a later version.
        """
        await check_secret(self._coordination, self.secret)
        self.loader.follow()
        # A new session may read older data than the former one, in which topics seem to be deleted.
        await self._coordination.sync()
        await self.loader.catch_up()
        check_supported(self.image.features)
        await self.loader.wait_for_listeners()
        # An attempt in another session continues with it: the logs are as they were.
        self._last_epoch = previous_epoch
        broker = broker._replace(features=OWN_FEATURES)
        self._check_history()
        epoch = await register_broker(
            self._environment, self._coordination, broker, previous_epoch, max_wait_s, self.seen
        )
        self._registration, self.broker_epoch, self._last_epoch = broker._replace(epoch=epoch), epoch, epoch
        for listener in self._on_registered:
            listener(epoch)
        if await self.controller.campaign(self.seen.writer_epoch):
            await self._reconcile_at_start()
        else:
            self._start_campaign()
        await self._wait_until_unfenced()
        await self.loader.wait_for_listeners()

    def _check_history(self) -> None:
        """Report that the coordination service has older metadata than this broker has seen.

        The controller finds it out by the registration, and recovers the partitions (metadata/recovery).
        """
        if self.has_seen_newer:
            self.producer_ids.skip_to(unseen_producer_id([self.seen]))
        if needs_recovery(self.seen, self.loader.change_log):
            log.error(
                "the coordination service has older metadata than this broker has seen",
                last_change=self.loader.change_log.number, last_change_seen=self.seen.number,
            )  # fmt: skip

    def _note_seen(self, delta: MetadataDelta) -> None:
        """Remember how new the image is, unless it is older than one before that the controller does not know of."""
        if self.is_unfenced or not self.has_seen_newer:
            seen = advanced(self.seen, self.loader.change_log, delta, self.producer_ids.reserved_end)
            if seen != self.seen and self._seen_file is not None:
                self._seen_file.write(seen)
            self.seen = seen

    async def _reconcile_at_start(self) -> None:
        """A lone broker starts on a full disk too, in its former leader epochs; it must not append then."""
        self.has_new_epochs = await self.renew_epochs()
        if self.has_new_epochs:
            return
        log.warning("the disk is full: no appends until there is space for new leader epochs")
        await self.loader.catch_up()
        assert self._registration is not None
        self.loader.apply(MetadataDelta(brokers={self._node_id: self._registration}))

    async def renew_epochs(self) -> bool:
        """Start new leader epochs for the partitions that this broker leads. Returns False if the disk is full."""
        try:
            await self.controller.replication.reconcile()
        except NoSpace:
            return False
        except (KafkaError, CoordinationError) as error:
            log.warning("brokers not reconciled", reason=error)
            self.controller.replication.start_reconciling()
        return True

    async def _wait_until_unfenced(self) -> None:
        if self._registration is None:
            # The session has ended since the registration, when nothing waited for the controller yet.
            raise SessionExpired
        if self.is_unfenced:
            return
        self._unfenced = self._loop.create_future()
        timer = self._loop.call_later(MAX_UNFENCING_S, self._give_up)
        try:
            await self._unfenced
        finally:
            timer.cancel()
            self._unfenced = None

    def _give_up(self) -> None:
        detail = f"the controller has not unfenced this broker in {MAX_UNFENCING_S} s"
        self._stop_waiting(Unavailable(znodes.broker_path(self._node_id), detail))

    def _stop_waiting(self, error: CoordinationError) -> None:
        if self._unfenced is not None and not self._unfenced.done():
            self._unfenced.set_exception(error)

    def _on_delta(self, delta: MetadataDelta) -> None:
        self._note_seen(delta)
        if delta.brokers:
            self._balance.schedule()
        if delta.brokers or delta.fenced_brokers or delta.configs or delta.controller_id is not None:
            self._healing.schedule()
        # The delta may be older than a successful campaign of this broker, so it is no reason to resign.
        if delta.controller_id == NO_LEADER:
            self._start_campaign()
        if self._unfenced is not None and self.is_unfenced and not self._unfenced.done():
            self._unfenced.set_result(None)

    def _start_campaign(self) -> None:
        """Campaign in the background if this broker is registered, and its image has no controller."""
        if self._registration is not None and self._campaigning is None and self.image.controller_id == NO_LEADER:
            self._campaigning = self._loop.create_task(self._campaign())

    async def _campaign(self) -> None:
        """Campaign until there is a controller: this broker, or another one in the image.

        A lost campaign does not end it: the winner may have vanished before this broker's image had it, and then no
        change of the image would start another campaign.
        """
        try:
            while self._registration is not None and self.image.controller_id == NO_LEADER:
                try:
                    if await self.controller.campaign(self.seen.writer_epoch):
                        self.controller.replication.start_reconciling()
                        return
                    await self.loader.read_controller()
                except SessionExpired:
                    return
                except CoordinationError as error:
                    log.warning("cannot campaign to be the controller", reason=error)
                    await sleep(RETRY_BACKOFF_S)
        except Exception as error:
            self._on_failure(error)
        finally:
            self._campaigning = None

    def on_session_lost(self) -> None:
        """End what depends on the session. The caller also ends the broker's roles, and then calls `rejoin`."""
        self._registration = None
        self.broker_epoch = 0
        self.controller.resign()
        self.loader.stop()
        # No controller will unfence a registration that has ended with its session.
        self._stop_waiting(SessionExpired())

    def fence_in_image(self) -> None:
        """Mark this broker as fenced in its own image, so that clients ask other brokers, if there are any.

        The new leaders of this broker's partitions are unknown.
        """
        registration = self.image.brokers.get(self._node_id)
        if registration is not None and len(self.image.brokers) > 1:
            delta = MetadataDelta(brokers={self._node_id: None}, fenced_brokers={self._node_id: registration})
            self.loader.apply(delta)

    def use_session(self, coordination: Coordination) -> None:
        """Continue with a new session, after the former one has ended."""
        self._coordination = coordination
        self.loader.use_session(coordination)
        self.controller.use_session(coordination)
        self.producer_ids.use_session(coordination)

    async def rejoin(self, coordination: Coordination, broker: BrokerRegistration, max_wait_s: float) -> None:
        """Load everything again in a new session, and register again with a new broker epoch.

        Then the roles listeners are called with all partitions, since all roles have ended. Raises CoordinationError;
        the caller may try again, with another session if this one has expired. Raises ForeignCluster, and applies
        nothing, if the service no longer has the metadata of this broker's cluster.
        """
        await check_same_cluster(coordination, self.image.cluster_id)
        self.use_session(coordination)
        await self.register(broker, max_wait_s, self._last_epoch)
        self.loader.replay_roles()

    async def leave(self) -> None:
        """Close the session. The registration, and the controllership if this broker has it, end with it."""
        self._registration = None
        self.controller.resign()
        self.loader.stop()
        await self._balance.stop()
        await self._healing.stop()
        if self._seen_file is not None:
            await self._seen_file.finish()
        await self._coordination.close()
