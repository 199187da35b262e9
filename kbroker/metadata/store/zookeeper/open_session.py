"""Opens a session: connects, checks what is below the chroot, and creates the chroot."""

from __future__ import annotations

from asyncio import AbstractEventLoop, wait
from contextlib import suppress

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.metadata.store.coordination import CoordinationError, NodeExists
from kbroker.metadata.store.zookeeper.session import ZooKeeperSession

# Nodes of an Apache Kafka cluster with ZooKeeper. Kafka creates all of them.
KAFKA_NODES = ("/brokers/ids", "/cluster/id", "/controller_epoch")
# The end of kazoo's warning when a server has closed the connection.
CLOSED_BY_SERVER = "socket connection broken"


class ZooKeeperUnusable(Exception):
    """ZooKeeper cannot be reached, or its nodes cannot be used."""


async def open_session(loop: AbstractEventLoop, settings: ZooKeeperSettings) -> ZooKeeperSession:
    """Return a connected session below the chroot. Raises ZooKeeperUnusable."""
    try:
        session = ZooKeeperSession(loop, settings)
    except OSError as error:
        raise ZooKeeperUnusable(f"cannot use TLS for ZooKeeper: {error.filename}: {error.strerror}") from None
    session.start()
    try:
        await _wait_until_connected(session, settings)
        await _check_and_create_chroot(session, settings)
    except CoordinationError as error:
        await session.close()
        raise ZooKeeperUnusable(f"cannot use ZooKeeper at {settings.address}: {error}") from None
    except BaseException:
        await session.close()
        raise
    session.chroot = settings.chroot
    return session


async def _wait_until_connected(session: ZooKeeperSession, settings: ZooKeeperSettings) -> None:
    timeout_s = settings.connection_timeout_s
    done, _ = await wait([session.connected], timeout=timeout_s)
    if not done:
        reason = session.last_warning or "no response"
        if reason.endswith(CLOSED_BY_SERVER):
            reason = "the server closes the connection, as it does while the ensemble has no quorum or is read-only"
        raise ZooKeeperUnusable(f"cannot connect to ZooKeeper at {settings.address} in {timeout_s:g} s: {reason}")


async def _check_and_create_chroot(session: ZooKeeperSession, settings: ZooKeeperSettings) -> None:
    for path in KAFKA_NODES:
        if await session.exists(settings.chroot + path) is not None:
            raise ZooKeeperUnusable(
                f"ZooKeeper at {settings.address} has the metadata of an Apache Kafka cluster ({path}): choose "
                f"another chroot, such as zookeeper.connect={','.join(settings.hosts)}/kbroker"
            )
    path = ""
    for name in settings.chroot.split("/")[1:]:
        path += f"/{name}"
        if await session.exists(path) is None:
            with suppress(NodeExists):  # another broker was first
                await session.create(path, b"")
