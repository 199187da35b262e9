"""Broker registration: an ephemeral node with the broker's address, and a new broker epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import BadVersion, Create, NodeExists, Set
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from kbroker.metadata.image import BrokerRegistration
    from kbroker.metadata.store.coordination import Coordination, WatchEvent
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")


async def register_broker(
    environment: Environment, coordination: Coordination, broker: BrokerRegistration, max_wait_s: float
) -> None:
    """Register a broker under the next broker epoch.

    If another session has registered this broker id, wait at most `max_wait_s` seconds for its end: it may be the
    session of the same broker before it was killed. Raises NodeExists after that time, and CoordinationError.
    """
    path = znodes.broker_path(broker.id)
    deadline = environment.loop.time() + max_wait_s
    while True:
        version = await coordination.exists(znodes.BROKER_EPOCH) or 0
        data = znodes.encode_broker(znodes.BrokerNode(broker._replace(epoch=version + 1)))
        try:
            await coordination.multi(
                [Set(znodes.BROKER_EPOCH, b"", version, per_session=True), Create(path, data, ephemeral=True)]
            )
        except BadVersion:
            continue  # another broker has registered in between
        except NodeExists:
            remaining_s = deadline - environment.loop.time()
            if remaining_s <= 0:
                raise
            log.warning("another session has this broker id", broker=broker.id, waiting_s=round(remaining_s))
            await _wait_until_deleted(environment, coordination, path, remaining_s)
            continue
        return


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
