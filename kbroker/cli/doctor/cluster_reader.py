"""Read-only access of `kbroker doctor` to the cluster: what is in ZooKeeper, and the configs of other brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.cli.common.errors import CliError
from kbroker.metadata.store.change_log import ChangeLog

if TYPE_CHECKING:
    from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
    from kbroker.metadata.image import BrokerRegistration

CONNECT_TIMEOUT_S = 5.0
# These differ between the brokers of every cluster, or may: those that are compared are registered in the same
# coordination service, and with `kbroker start --brokers N` each has another address for it.
OWN_CONFIGS = frozenset(
    {
        "node.id", "broker.id", "broker.rack", "listeners", "advertised.listeners", "log.dir", "log.dirs",
        "kbroker.inter.broker.listener", "kbroker.metrics.listener", "kbroker.zookeeper.digest", "zookeeper.connect",
    }
)  # fmt: skip


class ClusterUnreadable(Exception):
    """What is in ZooKeeper cannot be read."""


class ForeignNodes(Exception):
    """The nodes in ZooKeeper are those of another program."""


@dataclass(slots=True, frozen=True)
class StoredCluster:
    """`cluster_id` is empty before the cluster's first start. `brokers`: those that are registered, by id.

    `changes`: the last change. `recovering`: the number of partitions whose leader is found by the logs.
    """

    cluster_id: str = ""
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    changes: ChangeLog = field(default_factory=ChangeLog)
    recovering: int = 0


def read_cluster(settings: ZooKeeperSettings) -> StoredCluster:
    """Return the cluster that is stored in ZooKeeper. Creates nothing. Raises ClusterUnreadable, ForeignNodes."""
    import asyncio

    try:
        return asyncio.run(_read_cluster(settings))
    except OSError as error:
        raise ClusterUnreadable(f"{error.filename}: {error.strerror}") from None


async def _read_cluster(settings: ZooKeeperSettings) -> StoredCluster:
    import asyncio

    from kbroker.coordination.interface import CoordinationError
    from kbroker.coordination.zookeeper.open_session import ZooKeeperUnusable, check_chroot
    from kbroker.coordination.zookeeper.session import ZooKeeperSession
    from kbroker.metadata.store import znodes
    from kbroker.metadata.store.change_log import decode_change_log

    session = ZooKeeperSession(asyncio.get_running_loop(), settings)
    session.start()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.shield(session.connected)
        await check_chroot(session, settings, lambda place: None)
        session.chroot = settings.chroot
        if await session.exists(znodes.CLUSTER_ID) is None:
            return StoredCluster()
        node = await session.get(znodes.CLUSTER_ID)
        names = await session.children(znodes.BROKERS)
        brokers = {}
        for name in filter(str.isdecimal, names):
            (found,) = await session.get_many([znodes.broker_path(int(name))])
            if found is not None:
                brokers[int(name)] = znodes.decode_broker(int(name), found.data).registration
        changes = decode_change_log((await session.get(znodes.CHANGES)).data)
        numbers = [int(name) for name in await session.children(znodes.PARTITIONS)]
        chunks = await session.get_many([znodes.chunk_path(number) for number in numbers])
        recovering = sum(
            partition.is_recovering
            for number, chunk in zip(numbers, chunks, strict=True)
            for partitions in znodes.decode_chunk(number, b"{}" if chunk is None else chunk.data).values()
            for partition in partitions.values()
        )
        return StoredCluster(str(znodes.decode(znodes.CLUSTER_ID, node.data)["id"]), brokers, changes, recovering)
    except TimeoutError:
        raise ClusterUnreadable(session.last_warning or f"no response in {CONNECT_TIMEOUT_S:g} s") from None
    except ZooKeeperUnusable as error:
        raise ForeignNodes(str(error)) from None
    except CoordinationError as error:
        raise ClusterUnreadable(str(error)) from None
    finally:
        await session.close()


def broker_configs(address: str, node_id: int) -> dict[str, str | None] | None:
    """Return the values of a broker's configs without those that are its own; None if it does not respond."""
    from kbroker.cli.common.client import admin_client
    from kbroker.client.admin import BROKER, TypedResource, describe_configs

    try:
        with admin_client(address) as client:
            [described] = describe_configs(client, [TypedResource(BROKER, str(node_id))], broker=node_id)
    except CliError:
        return None
    return {
        config.name: config.value
        for config in described.configs
        if config.name not in OWN_CONFIGS and not config.is_sensitive
    }
