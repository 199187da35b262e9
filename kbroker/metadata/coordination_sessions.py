"""The sessions of a broker with the coordination service.

A lone broker has one session with the store in its process. A broker of a cluster whose session expires has lost its
registration, and perhaps its leaderships: it gives up all roles, opens another session, and joins the cluster again
with a new broker epoch. Its logs and its clients' connections stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import CoordinationError, NodeExists, SessionExpired, Unavailable
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.config import BrokerConfig
    from kbroker.coordination.interface import Coordination
    from kbroker.metadata.cluster_member import ClusterMember
    from kbroker.metadata.image import BrokerRegistration
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

# Opens a session with the coordination service.
OpenSession = Callable[[], "Awaitable[Coordination]"]

# The time in seconds that a restarted broker waits for its previous session to expire. Kafka's timeout is 18 s.
FORMER_SESSION_S = 20.0
FORMER_SESSION_MARGIN_S = 2.0
# Clocks may differ by this time in milliseconds, which is longer than any response takes.
CLOCK_SLACK_MS = 60_000
# The delay after a failed attempt to join the cluster again, in seconds.
REJOIN_BACKOFF_S = 0.5
# How long a broker that was cut off from all others waits before it joins again, so that another one is elected.
RESIGNATION_S = 3.0
# How long a starting broker tries to join the cluster after its first attempt has failed, in seconds.
FIRST_JOIN_S = 60.0


class BrokerMembership(NamedTuple):
    """A broker that joins the cluster. `registration` returns its registration, `resign` ends all its roles."""

    member: ClusterMember
    registration: Callable[[], BrokerRegistration]
    resign: Callable[[], None]


class CoordinationSessions:
    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        check_new: Callable[[str], None],
        is_stopping: Callable[[], bool],
        on_failure: Callable[[BaseException], None],
        open_session: OpenSession | None,
    ) -> None:
        """`check_new` raises ConfigError if the data directory belongs to a cluster, though the named service is empty.

        `on_failure` is called when the broker can have no session any more. `open_session`: None for ZooKeeper, or the
        embedded store if zookeeper.connect is not set.
        """
        self.current: Coordination | None = None
        self._environment = environment
        self._config = config
        self._check_new = check_new
        self._is_stopping = is_stopping
        self._on_failure = on_failure
        self._open_session = open_session
        # The time after which the session of this broker's former process has ended, in seconds.
        self._max_wait_s = FORMER_SESSION_S
        # The timeout for opening the first session, and then for loading the metadata, in seconds.
        self._connection_timeout_s = 0.0
        self._store: EmbeddedStore | None = None
        self._is_registered = False
        self._is_clock_reported = False
        self._rejoining: Task[None] | None = None
        # The last session that has expired.
        self._expired: Coordination | None = None
        # None before `register`.
        self._membership: BrokerMembership | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other brokers may have sessions with the same service. Known after `open`."""
        return self._open_session is not None

    async def open(self, path: str) -> Coordination:
        """Open the first session; `path` is the directory of the embedded store. Raises CoordinationError, OSError."""
        if self._open_session is None and self._config.get("zookeeper.connect"):
            self._open_session = self._zookeeper_sessions()
        if self._open_session is not None:
            return self._follow(await self._open_first(self._open_session))
        # Sessions of a store in this process end with the process.
        self._max_wait_s = 0.0
        self._store = await EmbeddedStore.open(self._environment, path, self._on_failure)
        if self._store.is_empty:
            self._check_new(f"{path} (zookeeper.connect is not set)")
        return self._follow(self._store.session())

    def _zookeeper_sessions(self) -> OpenSession:
        """Return the function that opens sessions with ZooKeeper."""
        # Imported here because kazoo takes time and memory.
        from kbroker.config.broker.zookeeper_settings import zookeeper_settings
        from kbroker.coordination.zookeeper.open_session import open_session

        settings = zookeeper_settings(self._config.values)
        self._connection_timeout_s = settings.connection_timeout_s

        async def open_one() -> Coordination:
            session = await open_session(self._environment.loop, settings, self._check_new, self.check_clock)
            # ZooKeeper may have chosen another timeout, also for the session of a former process.
            self._max_wait_s = session.timeout_ms / 1000 + FORMER_SESSION_MARGIN_S
            return session

        return open_one

    async def _open_first(self, open_session: OpenSession) -> Coordination:
        """Open a session. One that is lost before it can be used is replaced, until zookeeper.connection.timeout.ms."""
        deadline_s = self._environment.loop.time() + self._connection_timeout_s
        while True:
            try:
                return await open_session()
            except Unavailable as error:
                if self._is_stopping() or self._environment.loop.time() >= deadline_s:
                    raise
                log.warning("no session yet", reason=error)
            await self._environment.sleep(REJOIN_BACKOFF_S)

    def check_clock(self, server_time_ms: int) -> None:
        """Report, once, that this machine's clock differs from ZooKeeper's, so probably also from other brokers'.

        Nothing is refused: replication does not depend on clocks. `server_time_ms`: 0 or less if it is unknown.
        """
        ahead_ms = self._environment.clock.now_ms() - server_time_ms
        if server_time_ms > 0 and abs(ahead_ms) > CLOCK_SLACK_MS and not self._is_clock_reported:
            self._is_clock_reported = True
            log.error(
                "the clock of this machine differs from ZooKeeper's: retention and timestamps of records depend on it",
                ahead_s=round(ahead_ms / 1000),
            )

    def _follow(self, session: Coordination) -> Coordination:
        self.current = session
        session.on_expired(lambda: self._on_expired(session))
        return session

    async def load(self, member: ClusterMember, on_cluster_id: Callable[[str], Awaitable[None]]) -> Collection[bytes]:
        """Load the metadata, and return the ids of deleted topics: see ClusterMember.load.

        If the session expires meanwhile, or the service becomes unavailable, continue in another session. Raises
        CoordinationError, at the latest zookeeper.connection.timeout.ms after the first failure.
        """
        deadline_s = inf
        while True:
            try:
                return await member.load(on_cluster_id, lambda: self._check_new("the coordination service"))
            except (SessionExpired, Unavailable) as error:
                now_s = self._environment.loop.time()
                deadline_s = min(deadline_s, now_s + self._connection_timeout_s)
                if self._open_session is None or self._is_stopping() or now_s >= deadline_s:
                    raise
                log.warning("the broker cannot load the metadata yet", reason=error)
            await self._environment.sleep(REJOIN_BACKOFF_S)
            await self._close_current()
            member.use_session(self._follow(await self._open_session()))

    async def register(self, membership: BrokerMembership, previous_epoch: int) -> None:
        """Register the broker for the first time: see ClusterMember.register.

        If the session has expired meanwhile, or the service becomes unavailable, the broker joins in another session.
        Raises CoordinationError; Unavailable after FIRST_JOIN_S, because the operator waits for the start.
        """
        self._membership, member = membership, membership.member
        try:
            await member.register(membership.registration(), self._max_wait_s, previous_epoch)
            if not member.broker_epoch:
                raise SessionExpired
        except (SessionExpired, Unavailable) as error:
            if not self.is_shared:
                raise
            log.warning("the broker cannot join the cluster yet", reason=error)
            await self._join_again(membership, self._environment.loop.time() + FIRST_JOIN_S)
        self._is_registered = True

    def _on_expired(
        self, session: Coordination, message: str = "the session has expired: joining the cluster again"
    ) -> None:
        """End the roles: other brokers may have become the leaders of this broker's partitions."""
        self._expired = session
        if self._is_stopping() or session is not self.current:
            return
        if not self.is_shared:
            self._on_failure(SessionExpired())
            return
        log.warning(message)
        if self._membership is None:
            return
        self._membership.resign()
        # While ZooKeeper cannot be reached, the image would name this broker as the leader of its former partitions.
        self._membership.member.fence_in_image()
        # Before the first registration has ended, `register` continues in another session.
        if self._is_registered and self._rejoining is None:
            self._rejoining = self._environment.loop.create_task(self._rejoin(self._membership))

    @property
    def is_connected(self) -> bool:
        """Whether the coordination service responds."""
        return self.current is not None and self.current.is_connected

    @property
    def session_timeout_ms(self) -> int:
        """The timeout of the current session, as the service has chosen it; 0 before there is one."""
        return 0 if self.current is None else self.current.timeout_ms

    def on_fenced(self, broker_epoch: int) -> None:
        """Called when another broker reports that this epoch has ended: the session has ended, too, or is useless."""
        if self._membership_in(broker_epoch) is not None and self.current is not None:
            self._on_expired(self.current, "another broker reports that this one is fenced: joining the cluster again")

    def on_isolated(self, broker_epoch: int) -> None:
        """Called when this broker reaches no other one: end the session, so that other brokers get its roles.

        If it cannot reach the service either, they probably have already. The broker joins again when the service
        responds. Until it reaches other brokers it is in no ISR, so it leads few partitions.
        """
        membership = self._membership_in(broker_epoch)
        if membership is None or self._rejoining is not None or self._is_stopping():
            return
        log.warning("no other broker responds: giving up all roles", coordination_service_responds=self.is_connected)
        is_connected = self.is_connected
        membership.resign()
        if not is_connected:
            membership.member.fence_in_image()
        self._rejoining = self._environment.loop.create_task(self._rejoin(membership, RESIGNATION_S))

    def _membership_in(self, broker_epoch: int) -> BrokerMembership | None:
        """Return the membership if the broker is registered with this epoch, else None."""
        membership = self._membership
        return membership if membership is not None and membership.member.broker_epoch == broker_epoch else None

    async def _rejoin(self, membership: BrokerMembership, delay_s: float = 0.0) -> None:
        """Join again in another session, `delay_s` after the current one was closed, or at once if it has expired."""
        try:
            if delay_s:
                await self._wait_for_service()
                if self._expired is not self.current:
                    with suppress(CoordinationError, OSError):
                        await self._close_current()
                    await self._environment.sleep(delay_s)
            await self._join_again(membership)
        except Exception as error:
            self._on_failure(error)
        finally:
            self._rejoining = None

    async def _wait_for_service(self) -> None:
        """Wait until the service responds in the current session, or reports that the session has expired.

        A session that is not closed while the service is down would exist for its whole timeout afterwards.
        """
        session = self.current
        assert session is not None
        while not session.is_connected and self._expired is not session:
            await self._environment.sleep(REJOIN_BACKOFF_S)

    async def _join_again(self, membership: BrokerMembership, deadline_s: float = inf) -> None:
        """Open a session and register again, until that succeeds.

        Raises SessionExpired if the broker stops, NodeExists if another broker has this id, ConfigError, and after the
        deadline (of the loop's time) CoordinationError or OSError.
        """
        assert self._open_session is not None
        member = membership.member
        while not self._is_stopping():
            membership.resign()
            try:
                await self._close_current()
                session = self._follow(await self._open_session())
                await member.rejoin(session, membership.registration(), self._max_wait_s)
                if member.broker_epoch:
                    log.info("the broker has joined the cluster again", epoch=member.broker_epoch)
                    return
            except NodeExists:
                raise
            except (CoordinationError, OSError) as error:
                if self._environment.loop.time() > deadline_s:
                    raise
                log.warning("the broker cannot join the cluster yet", reason=error)
            await self._environment.sleep(REJOIN_BACKOFF_S)
        raise SessionExpired

    async def stop_rejoining(self) -> None:
        if self._rejoining is not None:
            self._rejoining.cancel()

    async def close(self) -> None:
        """End the session, and close the embedded store."""
        try:
            await self._close_current()
        finally:
            if self._store is not None:
                await self._store.close()

    async def _close_current(self) -> None:
        if self.current is not None:
            await self.current.close()
