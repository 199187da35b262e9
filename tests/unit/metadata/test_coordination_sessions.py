"""The sessions of a broker with the coordination service, apart from what tests/unit/simulation/coordination shows."""

import asyncio
from collections.abc import Callable, Container
from typing import Any

import pytest

from kbroker.config import BrokerConfig
from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.config.values import ConfigError
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.interface import Create, Unavailable, Watch
from kbroker.coordination.zookeeper import open_session
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.coordination_sessions import BrokerMembership, CoordinationSessions
from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.store import znodes
from kbroker.runtime.environment import Environment
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment
from tests.unit.support.metadata_cluster import CONFIG


def replace_zookeeper(
    monkeypatch: pytest.MonkeyPatch, environment: Environment, store: EmbeddedStore, connected: Container[int]
) -> list[EmbeddedSession]:
    """Open sessions with a store in place of ZooKeeper, and return the list to which each is added.

    `connected`: the numbers of the sessions, from 1, that are connected at once; the others never are.
    """
    opened: list[EmbeddedSession] = []

    class Session(EmbeddedSession):
        last_warning = "no route to host"
        chroot = ""

        def __init__(self, *_: object) -> None:
            opened.append(self)
            super().__init__(store, len(opened))
            self.connected = environment.loop.create_future()
            if len(opened) in connected:
                self.connected.set_result(None)

        def start(self) -> None:
            pass

    monkeypatch.setattr(open_session, "ZooKeeperSession", Session)
    return opened


def sessions_of(
    environment: Environment, configs: dict[str, str] | None = None, check_new: Callable[[str], None] = lambda _: None
) -> CoordinationSessions:
    config = BrokerConfig.load(CONFIG.static_configs | {"zookeeper.connect": "127.0.0.1:2181"} | (configs or {}))
    return CoordinationSessions(environment, config, check_new, lambda: False, pytest.fail, None)


@async_test
async def test_the_session_of_a_foreign_ensemble_is_closed(monkeypatch: pytest.MonkeyPatch):
    """Else its threads and its connection would outlive each attempt to join."""
    environment = make_environment(MemoryDisk())
    store = await EmbeddedStore.open(environment, "/data")
    opened = replace_zookeeper(monkeypatch, environment, store, connected={1})

    def refuse(where: str) -> None:
        raise ConfigError(f"{where} is of another cluster")

    sessions = sessions_of(environment, check_new=refuse)
    with pytest.raises(ConfigError, match="another cluster"):
        await sessions.open("/data")
    (session,) = opened
    with pytest.raises(Exception, match="SessionExpired"):
        await session.exists("/")


@async_test
async def test_a_broker_that_cannot_reach_zookeeper_tries_to_join_until_it_can(monkeypatch: pytest.MonkeyPatch):
    environment = make_environment(MemoryDisk())
    store = await EmbeddedStore.open(environment, "/data")
    opened = replace_zookeeper(monkeypatch, environment, store, connected={1, 4})

    class Member:
        broker_epoch = 0

        async def register(self, *_: object) -> None:
            self.broker_epoch = 1

        def fence_in_image(self) -> None:
            self.broker_epoch = 0

        async def rejoin(self, session: EmbeddedSession, *_: object) -> None:
            assert session is opened[3]
            self.broker_epoch = 2

    sessions = sessions_of(environment, {"zookeeper.connection.timeout.ms": "10"})
    await sessions.open("/data")
    member: Any = Member()
    await sessions.register(BrokerMembership(member, lambda: BrokerRegistration(1, "h", 9092), lambda: None), -1)
    await opened[0].expire()
    async with asyncio.timeout(30):
        while member.broker_epoch != 2:
            await asyncio.sleep(0.01)
    assert len(opened) == 4


@async_test
async def test_a_first_session_that_does_not_respond_is_replaced(monkeypatch: pytest.MonkeyPatch):
    environment = make_environment(MemoryDisk())
    store = await EmbeddedStore.open(environment, "/data")
    opened = replace_zookeeper(monkeypatch, environment, store, connected={1, 2})
    exists = EmbeddedSession.exists

    async def pause(session: EmbeddedSession, path: str, watch: Watch | None = None) -> int | None:
        if session is opened[0]:
            raise Unavailable(path, "ZooKeeper does not respond")
        return await exists(session, path, watch)

    monkeypatch.setattr(EmbeddedSession, "exists", pause)
    sessions = sessions_of(environment)
    assert await sessions.open("/data") is opened[1]


@async_test
async def test_a_session_that_ends_while_the_metadata_is_loaded_is_replaced(monkeypatch: pytest.MonkeyPatch):
    environment = make_environment(MemoryDisk())
    store = await EmbeddedStore.open(environment, "/data")
    opened = replace_zookeeper(monkeypatch, environment, store, connected={1, 2})
    sessions = sessions_of(environment)
    member = ClusterMember(environment, await sessions.open("/data"), 1, lambda: CONFIG, pytest.fail)

    async def expire(cluster_id: str) -> None:
        await opened[0].expire()

    await sessions.load(member, expire)
    assert member.image.cluster_id
    assert member.secret
    assert sessions.current is opened[1]
    await sessions.register(BrokerMembership(member, lambda: BrokerRegistration(1, "h", 9092), lambda: None), -1)
    assert member.is_unfenced


@async_test
async def test_a_clock_that_differs_from_zookeepers_is_reported_once(caplog: pytest.LogCaptureFixture):
    environment = make_environment(MemoryDisk())
    sessions = sessions_of(environment, check_new=pytest.fail)
    now_ms = environment.clock.now_ms()
    for time_ms in (0, now_ms, now_ms - 59_000, now_ms + 59_000):
        sessions.check_clock(time_ms)
    assert not caplog.records
    sessions.check_clock(now_ms + 3 * 3_600_000)
    sessions.check_clock(now_ms + 3 * 3_600_000)
    (record,) = caplog.records
    assert "the clock of this machine differs from ZooKeeper's" in record.getMessage()
    assert "ahead_s=-10800" in record.getMessage()


@async_test
@pytest.mark.parametrize("calls", range(6))
async def test_a_cluster_that_another_broker_creates_meanwhile_is_not_foreign(
    monkeypatch: pytest.MonkeyPatch, calls: int
):
    environment = make_environment(MemoryDisk())
    store = await EmbeddedStore.open(environment, "/data")

    class Session(EmbeddedSession):
        """In place of one with ZooKeeper. Another broker creates the cluster after the first `calls` calls."""

        chroot = ""

        def __init__(self, *_: object) -> None:
            super().__init__(store, 1)
            self.remaining = calls
            self.connected = environment.loop.create_future()
            self.connected.set_result(None)

        def start(self) -> None:
            pass

        async def exists(self, path: str, watch: Watch | None = None) -> int | None:
            if self.remaining == 0:
                await store.session().multi([Create(znodes.ROOT, b""), Create(znodes.CLUSTER_ID, b"{}")])
            self.remaining -= 1
            return await super().exists(path, watch)

    monkeypatch.setattr(open_session, "ZooKeeperSession", Session)
    await open_session.open_session(environment.loop, ZooKeeperSettings(("127.0.0.1:2181",)))
