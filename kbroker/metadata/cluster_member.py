"""A broker's membership in the cluster: it registers, campaigns for the controllership and loads the metadata."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.metadata.controller import Controller
from kbroker.metadata.features import INITIAL_FEATURES
from kbroker.metadata.image import BrokerRegistration, DeltaListener, MetadataImage
from kbroker.metadata.metadata_loader import MetadataLoader
from kbroker.metadata.producer_id_manager import ProducerIdManager
from kbroker.metadata.registration import register_broker
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import Create, NodeExists, NoSpace
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from random import Random

    from kbroker.config import BrokerConfig
    from kbroker.metadata.store.coordination import Coordination
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

SECRET_BYTES = 32


class ClusterMember:
    """The result of join_cluster: the loaded image, the controller (elected or not) and the producer id manager."""

    def __init__(
        self,
        environment: Environment,
        coordination: Coordination,
        node_id: int,
        config: Callable[[], BrokerConfig],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.image = MetadataImage()
        self.loader = MetadataLoader(coordination, environment.loop, self.image, on_failure)
        self.controller = Controller(node_id, coordination, self.loader, environment.loop, environment.random, config)
        self.producer_ids = ProducerIdManager(coordination, environment.loop)
        self._coordination = coordination
        # With it brokers prove to each other that they belong to this cluster.
        self.secret = b""
        # Whether all partitions have leader epochs that no earlier process has used.
        self.has_new_epochs = True

    def add_listener(self, listener: DeltaListener) -> None:
        """Await `listener` with every later delta. Listeners are called in the order in which they were added."""
        self.loader.listeners.append(listener)

    async def renew_epochs(self) -> bool:
        """Start new leader epochs for the partitions that this broker leads. Returns False if the disk is full."""
        try:
            await self.controller.bump_leader_epochs()
        except NoSpace:
            return False
        return True

    async def leave(self) -> None:
        """Close the session. The registration, and the controllership if this broker has it, end with it."""
        self.loader.stop()
        await self._coordination.close()


async def join_cluster(
    environment: Environment,
    coordination: Coordination,
    broker: BrokerRegistration,
    config: Callable[[], BrokerConfig],
    on_failure: Callable[[BaseException], None],
    max_wait_s: float = 0.0,
    on_cluster_id: Callable[[str], Awaitable[None]] | None = None,
) -> ClusterMember:
    """Register the broker (its epoch is assigned here), campaign for the controllership, and load the metadata.

    `config` returns the broker's current configuration. `on_failure` is called when the metadata can no longer be kept
    up to date; the broker must then stop. `on_cluster_id` is awaited before the broker registers, and may raise.
    Raises CoordinationError; NodeExists if another session still has this broker id after `max_wait_s` seconds.
    """
    member = ClusterMember(environment, coordination, broker.id, config, on_failure)
    cluster_id = await _create_layout(coordination, environment.random)
    if on_cluster_id is not None:
        await on_cluster_id(cluster_id)
    await register_broker(environment, coordination, broker, max_wait_s)
    await member.controller.campaign()
    member.image.cluster_id = cluster_id
    member.secret = znodes.decode_secret((await coordination.get(znodes.SECRET)).data)
    await member.loader.catch_up()
    if member.controller.is_elected:
        member.has_new_epochs = await member.renew_epochs()
        if not member.has_new_epochs:
            log.warning("the disk is full: no appends until there is space for new leader epochs")
    return member


async def _create_layout(coordination: Coordination, random: Random) -> str:
    """Create the nodes that every broker needs if this is the cluster's first start. Return the cluster id."""
    if await coordination.exists(znodes.CLUSTER_ID) is None:
        cluster_id = urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=").replace("-", "_")
        directories = (
            znodes.BROKERS,
            znodes.REGISTRATIONS,
            znodes.TOPICS,
            znodes.PARTITIONS,
            znodes.CONFIGS,
            *znodes.CONFIG_ROOTS,
        )
        ops = [
            Create(znodes.ROOT, b""),
            Create(znodes.CLUSTER_ID, znodes.encode({"id": cluster_id})),
            Create(znodes.BROKER_EPOCH, b""),
            Create(znodes.CONTROLLER_EPOCH, znodes.encode({"epoch": 0})),
            Create(znodes.CHANGES, znodes.encode_change_log(znodes.ChangeLog())),
            Create(znodes.FEATURES, znodes.encode_features(INITIAL_FEATURES)),
            Create(znodes.SECRET, znodes.encode_secret(random.randbytes(SECRET_BYTES))),
            Create(znodes.PRODUCER_IDS, znodes.encode({"next": 0})),
            *(Create(path, b"") for path in directories),
        ]
        with suppress(NodeExists):  # another broker was first
            await coordination.multi(ops)
    else:
        # Nodes that the version that created the cluster did not have.
        for path, data in (
            (znodes.FEATURES, znodes.encode_features(INITIAL_FEATURES)),
            (znodes.REGISTRATIONS, b""),
            (znodes.SECRET, znodes.encode_secret(random.randbytes(SECRET_BYTES))),
        ):
            if await coordination.exists(path) is None:
                with suppress(NodeExists):
                    await coordination.create(path, data)
    node = await coordination.get(znodes.CLUSTER_ID)
    return str(znodes.decode(znodes.CLUSTER_ID, node.data)["id"])
