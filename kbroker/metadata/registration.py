"""Broker registration: an ephemeral node with the broker's address, and a new broker epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import format_address
from kbroker.metadata.image import BrokerNode
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import BadVersion, Create, NodeExists, Set
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from kbroker.metadata.image import BrokerRegistration
    from kbroker.metadata.store.coordination import Coordination, WatchEvent
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")


class BrokerIdInUse(NodeExists):
    """Another process is registered with this broker id."""

    def __str__(self) -> str:
        return self.detail


async def register_broker(
    environment: Environment,
    coordination: Coordination,
    broker: BrokerRegistration,
    previous_epoch: int,
    max_wait_s: float,
) -> int:
    """Register a broker under the next broker epoch, and return it.

    `previous_epoch`: the broker epoch before the last clean shutdown, -1 if the shutdown was unclean. If another
    session has registered this broker id, wait at most `max_wait_s` seconds for its end: it may be the session of the
    same broker before it was killed. Raises BrokerIdInUse after that time, and CoordinationError.
    """
    path = znodes.broker_path(broker.id)
    deadline = environment.loop.time() + max_wait_s
    while True:
        version = await coordination.exists(znodes.BROKER_EPOCH) or 0
        node = BrokerNode(broker._replace(epoch=version + 1), previous_epoch)
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
            own_epoch = await _own_epoch(coordination, broker.id)
            if own_epoch is not None:
                return own_epoch
            remaining_s = deadline - environment.loop.time()
            if remaining_s <= 0:
                raise await _broker_id_in_use(coordination, broker.id) from None
            log.warning("another session has this broker id", broker=broker.id, waiting_s=round(remaining_s))
            await _wait_until_deleted(environment, coordination, path, remaining_s)
            continue
        return version + 1


async def _broker_id_in_use(coordination: Coordination, broker_id: int) -> BrokerIdInUse:
    path = znodes.broker_path(broker_id)
    (node,) = await coordination.get_many([path])
    if node is None:
        return BrokerIdInUse(path, f"another broker of this cluster has node.id={broker_id}")
    other = znodes.decode_broker(broker_id, node.data).registration
    address = format_address(other.host, other.port)
    return BrokerIdInUse(path, f"another broker of this cluster has node.id={broker_id}: it serves {address}")


async def _own_epoch(coordination: Coordination, broker_id: int) -> int | None:
    """Return the epoch of a registration that this session has made in a call whose outcome was unknown."""
    (node,) = await coordination.get_many([znodes.broker_path(broker_id)])
    if node is None or node.owner != coordination.session_id:
        return None
    return znodes.decode_broker(broker_id, node.data).registration.epoch


async def _wait_until_deleted(environment: Environment, coordination: Coordination, path: str, max_s: float) -> None:
    """Wait until the node is deleted or changed, at most `max_s` seconds."""
    changed = environment.loop.create_future()

    def on_event(event: WatchEvent | None) -> None:
        if not changed.done():
            changed.set_result(None)

    if await coordination.exists(path, on_event) is None:
        return
    timer = environment.loop.call_later(max_s, on_event, None)
    await changed
    timer.cancel()
