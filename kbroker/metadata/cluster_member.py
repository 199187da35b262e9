"""A broker's membership: its registration, the election, and the metadata that follows from both."""

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
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import BadVersion, Create, NodeExists, Set
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from random import Random

    from kbroker.config import BrokerConfig
    from kbroker.metadata.store.coordination import Coordination, WatchEvent
    from kbroker.runtime.environment import Environment


log = EventLogger("kbroker.metadata")


class ClusterMember:
    """What `join` gives: the image (complete), the controller (elected or not), producer ids."""

    def __init__(
        self,
        environment: Environment,
        coordination: Coordination,
        node_id: int,
        config: Callable[[], BrokerConfig],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.image = MetadataImage()
        self.loader = MetadataLoader(coordination, environment.loop, self.image, failed)
        self.controller = Controller(node_id, coordination, self.loader, environment.loop, environment.random, config)
        self.producer_ids = ProducerIdManager(coordination, environment.loop)
        self._coordination = coordination

    def add_listener(self, listener: DeltaListener) -> None:
        """`listener` is awaited with every later delta, after those that listen already."""
        self.loader.listeners.append(listener)

    async def leave(self) -> None:
        """The registration and the controllership end with the session."""
        self.loader.stop()
        await self._coordination.close()


async def join_cluster(
    environment: Environment,
    coordination: Coordination,
    node: BrokerRegistration,
    config: Callable[[], BrokerConfig],
    failed: Callable[[BaseException], None],
    patience_s: float = 0.0,
    admit: Callable[[str], Awaitable[None]] | None = None,
) -> ClusterMember:
    """Registers the broker (its epoch is assigned here), stands for election, and loads the metadata.

    `config` gives the broker's configuration as it is now. `failed` hears when metadata can no longer be
    followed, after which the broker must not go on. `admit` is awaited with the cluster's id before this broker does
    anything in it, and may raise. Raises CoordinationError; NodeExists when another
    broker has this id, or when this one has been killed and its session is still alive after `patience_s`.
    """
    member = ClusterMember(environment, coordination, node.id, config, failed)
    cluster_id = await _lay_out(coordination, environment.random)
    if admit is not None:
        await admit(cluster_id)
    await _register(environment, coordination, node, patience_s)
    await member.controller.campaign()
    member.image.cluster_id = cluster_id
    await member.loader.catch_up()
    if member.controller.elected:
        await member.controller.restart_leaders()
    return member


async def _lay_out(coordination: Coordination, random: Random) -> str:
    """Makes the nodes that every broker relies on, the cluster id among them, if this is the first start."""
    if await coordination.exists(znodes.CLUSTER_ID) is None:
        drawn = urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=").replace("-", "_")
        empty = (znodes.BROKERS, znodes.TOPICS, znodes.PARTITIONS, znodes.CONFIGS, *znodes.CONFIG_ROOTS)
        ops = [
            Create(znodes.ROOT, b""),
            Create(znodes.CLUSTER_ID, znodes.encode({"id": drawn})),
            Create(znodes.BROKER_EPOCH, b""),
            Create(znodes.CONTROLLER_EPOCH, znodes.encode({"epoch": 0})),
            Create(znodes.CHANGES, znodes.encode_changes(znodes.ChangeLog())),
            Create(znodes.FEATURES, znodes.encode_features(INITIAL_FEATURES)),
            Create(znodes.PRODUCER_IDS, znodes.encode({"next": 0})),
            *(Create(path, b"") for path in empty),
        ]
        with suppress(NodeExists):  # another broker of the cluster was first
            await coordination.multi(ops)
    elif await coordination.exists(znodes.FEATURES) is None:
        # Laid out before there were features.
        with suppress(NodeExists):
            await coordination.create(znodes.FEATURES, znodes.encode_features(INITIAL_FEATURES))
    node = await coordination.get(znodes.CLUSTER_ID)
    return str(znodes.decode(znodes.CLUSTER_ID, node.data)["id"])


async def _register(
    environment: Environment, coordination: Coordination, node: BrokerRegistration, patience_s: float
) -> None:
    """Raises NodeExists while another session holds this broker id."""
    path = znodes.broker_path(node.id)
    deadline = environment.loop.time() + patience_s
    while True:
        version = await coordination.exists(znodes.BROKER_EPOCH) or 0
        data = znodes.encode_broker(node._replace(epoch=version + 1))
        try:
            await coordination.multi([Set(znodes.BROKER_EPOCH, b"", version), Create(path, data, ephemeral=True)])
        except BadVersion:
            continue
        except NodeExists:
            left = deadline - environment.loop.time()
            if left <= 0:
                raise
            log.warning("another session has this broker id", broker=node.id, waiting_s=round(left))
            await _until_gone(environment, coordination, path, left)
            continue
        return


async def _until_gone(environment: Environment, coordination: Coordination, path: str, seconds: float) -> None:
    """Until there is no such node, or so long."""
    gone = environment.loop.create_future()

    def on_event(event: WatchEvent | None) -> None:
        if not gone.done():
            gone.set_result(None)

    if await coordination.exists(path, on_event) is None:
        return
    timer = environment.loop.call_later(seconds, on_event, None)
    await gone
    timer.cancel()
