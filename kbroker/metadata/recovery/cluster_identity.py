"""The identity of a cluster: its id, which is created with its first nodes.

A broker whose cluster is another one, or has no metadata any more, must not apply what it finds there: its topics would
seem to be deleted.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.coordination.interface import Create, NodeExists, Op
from kbroker.metadata.features import INITIAL_FEATURES
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import RECENT, ChangeLog, encode_change_log, recent_paths

if TYPE_CHECKING:
    from random import Random

    from kbroker.coordination.interface import Coordination

SECRET_BYTES = 32


class ForeignCluster(Exception):
    """The coordination service does not have the metadata of this broker's cluster any more."""


def layout_ops(random: Random) -> list[Op]:
    """Return the operations that create a cluster with a random id."""
    cluster_id = urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=").replace("-", "_")
    directories = (
        znodes.BROKERS,
        znodes.REGISTRATIONS,
        znodes.TOPICS,
        znodes.PARTITIONS,
        znodes.CONFIGS,
        *znodes.CONFIG_ROOTS,
        RECENT,
        *recent_paths(),
    )
    return [
        Create(znodes.ROOT, b""),
        Create(znodes.CLUSTER_ID, znodes.encode({"id": cluster_id})),
        Create(znodes.BROKER_EPOCH, b""),
        Create(znodes.CONTROLLER_EPOCH, znodes.encode({"epoch": 0})),
        Create(znodes.CHANGES, encode_change_log(ChangeLog())),
        Create(znodes.FEATURES, znodes.encode_features(INITIAL_FEATURES)),
        Create(znodes.SECRET, znodes.encode_secret(random.randbytes(SECRET_BYTES))),
        Create(znodes.PRODUCER_IDS, znodes.encode({"next": 0})),
        *(Create(path, b"") for path in directories),
    ]


async def create_layout(
    coordination: Coordination, random: Random, check_new: Callable[[], None] = lambda: None
) -> str:
    """Create the nodes that every broker needs if this is the cluster's first start. Return the cluster id.

    `check_new` is called before a cluster is created, and may raise.
    """
    if await coordination.exists(znodes.CLUSTER_ID) is None:
        check_new()
        with suppress(NodeExists):  # another broker was first
            await coordination.multi(layout_ops(random))
    else:
        # Nodes that the version that created the cluster did not have.
        for path, data in (
            (znodes.FEATURES, znodes.encode_features(INITIAL_FEATURES)),
            (znodes.REGISTRATIONS, b""),
            (znodes.SECRET, znodes.encode_secret(random.randbytes(SECRET_BYTES))),
            (RECENT, b""),
            *((path, b"") for path in recent_paths()),
        ):
            if await coordination.exists(path) is None:
                with suppress(NodeExists):
                    await coordination.create(path, data)
    node = await coordination.get(znodes.CLUSTER_ID)
    return _cluster_id(node.data)


async def read_secret(coordination: Coordination) -> bytes:
    """Return the secret with which brokers prove to each other that they belong to this cluster."""
    return znodes.decode_secret((await coordination.get(znodes.SECRET)).data)


async def check_same_cluster(coordination: Coordination, cluster_id: str) -> None:
    """Raise ForeignCluster unless the service has the metadata of this cluster. Raises CoordinationError."""
    await coordination.sync()
    id_node, changes = await coordination.get_many([znodes.CLUSTER_ID, znodes.CHANGES])
    if id_node is None or (changes is None and _cluster_id(id_node.data) == cluster_id):
        raise ForeignCluster(
            f"the coordination service has lost the metadata of cluster {cluster_id}, to which this broker and its "
            "logs belong: restore the metadata, then start the broker again"
        )
    found = _cluster_id(id_node.data)
    if found != cluster_id:
        raise ForeignCluster(
            f"the coordination service has the metadata of cluster {found} now; this broker and its logs belong to "
            f"cluster {cluster_id}: restore that metadata or correct zookeeper.connect, then start the broker again"
        )


def _cluster_id(data: bytes) -> str:
    return str(znodes.decode(znodes.CLUSTER_ID, data)["id"])
