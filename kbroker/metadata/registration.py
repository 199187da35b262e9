"""A broker joins its cluster: the identity of the cluster, and the registration of the broker.

The cluster's id and secret are created with its first nodes. A broker whose cluster is another one, or has no metadata
any more, must not apply what it finds there: its topics would seem to be deleted. A registration is an ephemeral node
with the broker's address, and a new broker epoch.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random

from kbroker.common import format_address, uuid_text
from kbroker.coordination.interface import BadVersion, Coordination, Create, NodeExists, NoSpace, Op, Set, WatchEvent
from kbroker.metadata.features import FORMER_FINALIZED, INITIAL_FEATURES
from kbroker.metadata.image import NOTHING_SEEN, BrokerNode, BrokerRegistration, SeenMetadata
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import RECENT, ChangeLog, encode_change_log, recent_paths
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger

SECRET_BYTES = 32
log = EventLogger("kbroker.metadata")
# A multi of these writes takes some 60 KB.
MAX_EPOCHS_AT_ONCE = 1_000


class ForeignCluster(Exception):
    """The coordination service does not have the metadata of this broker's cluster any more."""


def layout_ops(random: Random) -> list[Op]:
    """Return the operations that create a cluster with a random id."""
    cluster_id = uuid_text(random.randbytes(16)).replace("-", "_")
    directories = (
        znodes.BROKERS,
        znodes.REGISTRATIONS,
        znodes.TOPICS,
        znodes.PARTITIONS,
        znodes.CONFIGS,
        *znodes.CONFIG_ROOTS,
        znodes.USERS,
        znodes.ACLS,
        znodes.QUOTAS,
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
        # Nodes that the version that created the cluster did not have, and a lost secret (see check_secret).
        for path, data in (
            (znodes.FEATURES, znodes.encode_features(FORMER_FINALIZED)),
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


class WrongSecret(Exception):
    """This broker knows another secret than the other brokers, so no connection between them would succeed."""


class BrokerIdInUse(NodeExists):
    """Another process is registered with this broker id."""

    def __str__(self) -> str:
        return self.detail


async def check_secret(coordination: Coordination, secret: bytes) -> None:
    """Raise WrongSecret unless this is the secret with which the other brokers have registered.

    The first broker stores a digest of it. Raises CoordinationError.
    """
    # A single broker can start on a full disk.
    with suppress(NodeExists, NoSpace):
        if await coordination.exists(znodes.SECRET_DIGEST) is None:
            await coordination.create(znodes.SECRET_DIGEST, znodes.encode_secret_digest(secret))
    (stored,) = await coordination.get_many([znodes.SECRET_DIGEST])
    if stored is not None and not znodes.is_digest_of(secret, stored.data):
        raise WrongSecret(
            f"{znodes.SECRET} has another secret than the one with which the brokers of this cluster have registered: "
            "they would reject all connections of this broker. Restore it. If it is lost, stop all brokers, and delete "
            f"{znodes.SECRET} and {znodes.SECRET_DIGEST}: the next start creates them"
        )


async def register_broker(
    environment: Environment,
    coordination: Coordination,
    broker: BrokerRegistration,
    previous_epoch: int,
    max_wait_s: float,
    seen: SeenMetadata = NOTHING_SEEN,
) -> int:
    """Register a broker under the next broker epoch, and return it.

    The epoch is higher than all that the broker has `seen`, also if the service was restored from an older copy.
    `previous_epoch`: the broker epoch before the last clean shutdown, -1 if the shutdown was unclean. If another
    session has registered this broker id, wait at most `max_wait_s` seconds for its end: it may be the session of the
    same broker before it was killed. Raises BrokerIdInUse after that time, and CoordinationError.
    """
    path = znodes.broker_path(broker.id)
    deadline = environment.loop.time() + max_wait_s
    while True:
        version = await coordination.exists(znodes.BROKER_EPOCH) or 0
        if version < seen.broker_epoch:
            await _advance_epoch(coordination, version, seen.broker_epoch)
            continue
        node = BrokerNode(broker._replace(epoch=version + 1), previous_epoch, seen)
        try:
            await coordination.multi(
                [
                    Set(znodes.BROKER_EPOCH, b"", version, per_session=True),
                    Create(path, znodes.encode_broker(node), ephemeral=True),
                ]
            )
        except BadVersion:
            continue  # another broker has registered in between
        except NodeExists:
            (found,) = await coordination.get_many([path])
            if found is None:
                continue  # it has ended in between
            registered = znodes.decode_broker(broker.id, found.data).registration
            if found.owner == coordination.session_id:
                return registered.epoch  # this session has made it in a call whose outcome was unknown
            address, remaining_s = format_address(registered.host, registered.port), deadline - environment.loop.time()
            if remaining_s <= 0:
                detail = f"another broker of this cluster has node.id={broker.id}: it serves {address}"
                raise BrokerIdInUse(path, detail) from None
            if registered.directory_id == broker.directory_id:
                # Usual after a kill.
                log.info("waiting for the end of this broker's former session", waiting_s=round(remaining_s))
            else:
                log.warning(
                    "a broker with another log directory has this id", address=address, waiting_s=round(remaining_s)
                )
            await _wait_until_deleted(environment, coordination, path, remaining_s)
            continue
        return version + 1


async def _advance_epoch(coordination: Coordination, version: int, epoch: int) -> None:
    """Write the node of the broker epoch until its version is at least `epoch`, or another broker writes it."""
    last = min(epoch, version + MAX_EPOCHS_AT_ONCE)
    with suppress(BadVersion):
        await coordination.multi([Set(znodes.BROKER_EPOCH, b"", before) for before in range(version, last)])


async def _wait_until_deleted(environment: Environment, coordination: Coordination, path: str, max_s: float) -> None:
    """Wait until the node is deleted or changed, or this session expires, at most `max_s` seconds."""
    changed = environment.loop.create_future()

    def on_event(event: WatchEvent | None) -> None:
        if not changed.done():
            changed.set_result(None)

    # No watch fires after that: without it, the broker would open another session only after `max_s`. The service may
    # have been restored from an older copy, and only this broker may know (OlderMetadata).
    coordination.on_expired(lambda: on_event(None))
    if await coordination.exists(path, on_event) is None:
        return
    timer = environment.loop.call_later(max_s, on_event, None)
    await changed
    timer.cancel()
