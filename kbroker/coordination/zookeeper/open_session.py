"""Opens a session: connects, checks what is below the chroot, and creates the chroot."""

import re
from asyncio import AbstractEventLoop, wait
from collections.abc import Callable
from contextlib import suppress

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.interface import CLUSTER_ID, ROOT, CoordinationError, NodeExists, SessionExpired, Unavailable
from kbroker.coordination.zookeeper.session import ZooKeeperSession

# Nodes of an Apache Kafka cluster with ZooKeeper. Kafka creates all of them.
KAFKA_NODES = ("/brokers/ids", "/cluster/id", "/controller_epoch")
# The end of kazoo's warning when a server has closed the connection.
CLOSED_BY_SERVER = "socket connection broken"


class ZooKeeperUnusable(Exception):
    """ZooKeeper cannot be reached, or its nodes cannot be used."""


class ZooKeeperUnreachable(ZooKeeperUnusable, Unavailable):
    """ZooKeeper does not respond now. A broker that was a member tries again."""

    def __init__(self, reason: str) -> None:
        Unavailable.__init__(self, detail=reason)

    def __str__(self) -> str:
        return self.detail


async def open_session(
    loop: AbstractEventLoop,
    settings: ZooKeeperSettings,
    check_new: Callable[[str], None] = lambda place: None,
    on_server_time: Callable[[int], None] = lambda time_ms: None,
) -> ZooKeeperSession:
    """Return a connected session below the chroot. Raises ZooKeeperUnusable.

    `check_new` is called if there is no cluster below the chroot, before anything is created, and may raise.
    `on_server_time`: called with ZooKeeper's time of each write, in milliseconds.
    """
    try:
        session = ZooKeeperSession(loop, settings, on_server_time)
    except OSError as error:
        raise ZooKeeperUnusable(f"cannot use TLS for ZooKeeper: {error.filename}: {error.strerror}") from None
    session.start()
    try:
        await _wait_until_connected(session, settings)
        await check_chroot(session, settings, check_new)
        await _create_chroot(session, settings)
        session.chroot = settings.chroot
        if settings.set_acl:
            # What brokers without zookeeper.set.acl have created: the secret and the users' keys above all.
            await session.protect(ROOT)
    except ZooKeeperUnreachable:
        await session.close()
        raise
    except CoordinationError as error:
        await session.close()
        is_temporary = isinstance(error, (Unavailable, SessionExpired))
        kind = ZooKeeperUnreachable if is_temporary else ZooKeeperUnusable
        raise kind(f"cannot use ZooKeeper at {settings.address}: {error}") from None
    except BaseException:
        await session.close()
        raise
    return session


async def _wait_until_connected(session: ZooKeeperSession, settings: ZooKeeperSettings) -> None:
    timeout_s = settings.connection_timeout_s
    done, _ = await wait([session.connected], timeout=timeout_s)
    if not done:
        reason = session.last_warning or "no response"
        if reason.endswith(CLOSED_BY_SERVER):
            reason = "the server closes the connection, as it does while the ensemble has no quorum or is read-only"
        raise ZooKeeperUnreachable(f"cannot connect to ZooKeeper at {settings.address} in {timeout_s:g} s: {reason}")


async def check_chroot(
    session: ZooKeeperSession, settings: ZooKeeperSettings, check_new: Callable[[str], None]
) -> None:
    """Raise ZooKeeperUnusable if the nodes below the chroot are those of another program. The session has no chroot."""
    place = f"ZooKeeper at {settings.address}"
    for path in KAFKA_NODES:
        if await session.exists(settings.chroot + path) is not None:
            raise ZooKeeperUnusable(
                f"{place} has the metadata of an Apache Kafka cluster ({path}): choose "
                f"another chroot, such as zookeeper.connect={','.join(settings.hosts)}/kbroker"
            )
    for path in _enclosing_clusters(settings.chroot):
        if await session.exists(path + CLUSTER_ID) is not None:
            raise ZooKeeperUnusable(
                f"{place} is inside the metadata of the kbroker cluster with "
                f"zookeeper.connect={','.join(settings.hosts)}{path}: use that one, or choose another chroot"
            )
    # Before the cluster id: a broker that starts at the same time creates both in one multi.
    has_root = await session.exists(settings.chroot + ROOT) is not None
    if await session.exists(settings.chroot + CLUSTER_ID) is not None:
        return
    if has_root:
        raise ZooKeeperUnusable(
            f"{place} has a node {ROOT} of another program, without a kbroker cluster: choose another chroot"
        )
    check_new(place)


def _enclosing_clusters(chroot: str) -> list[str]:
    """Return the chroots of clusters whose metadata would contain this one."""
    return [chroot[: match.start()] for match in re.finditer(f"{ROOT}(?=/|$)", chroot)]


async def _create_chroot(session: ZooKeeperSession, settings: ZooKeeperSettings) -> None:
    path = ""
    for name in settings.chroot.split("/")[1:]:
        path += f"/{name}"
        if await session.exists(path) is None:
            with suppress(NodeExists):  # another broker was first
                await session.create(path, b"")
