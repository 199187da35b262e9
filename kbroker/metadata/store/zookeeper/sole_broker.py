"""One broker uses a cluster's metadata in ZooKeeper, because partitions are not replicated yet."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import NodeExists

if TYPE_CHECKING:
    from kbroker.metadata.store.coordination import Coordination


class OtherBrokerExists(Exception):
    """The cluster has a broker with another id."""


async def claim_cluster(coordination: Coordination, broker_id: int) -> None:
    """Make this broker the only one of the cluster. Raises OtherBrokerExists, CoordinationError."""
    with suppress(NodeExists):
        await coordination.create(znodes.SOLE_BROKER, znodes.encode({"broker": broker_id}))
    node = await coordination.get(znodes.SOLE_BROKER)
    owner = znodes.decode(znodes.SOLE_BROKER, node.data)["broker"]
    if owner != broker_id:
        raise OtherBrokerExists(
            f"the cluster in ZooKeeper belongs to node.id={owner}; this broker has node.id={broker_id}, and a cluster "
            "of several brokers is not supported yet"
        )
