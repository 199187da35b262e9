"""Detects that this broker is fenced while the coordination service cannot be reached.

A broker that is cut off from the coordination service keeps its roles: its session may still exist, and an outage of
the service must not become one of the brokers. But if only this broker is cut off, its session expires, and other
brokers become the leaders of its partitions. Clients that ask it for metadata or a coordinator would be sent to it all
the same. So while the service is silent, it asks the other brokers with BrokerHeartbeat requests, as brokers of KRaft
ask the controller. Being fenced in a broker epoch is final, so any broker may report it, even with an old image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kbroker.interbroker.peers import PeerUnavailable
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

if TYPE_CHECKING:
    from kbroker.interbroker.identity import BrokerIdentity
    from kbroker.interbroker.peers import Peers
    from kbroker.metadata.image import MetadataImage
    from kbroker.runtime.environment import Environment

VERSION = 2
PERIOD_MS = 1000
TIMEOUT_MS = 2000


class FencingCheck:
    """`is_connected`: whether the coordination service responds. `on_fenced` is called with the broker epoch."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        image: MetadataImage,
        peers: Peers,
        is_connected: Callable[[], bool],
        on_fenced: Callable[[int], None],
    ) -> None:
        self._identity = identity
        self._image = image
        self._peers = peers
        self._is_connected = is_connected
        self._on_fenced = on_fenced
        self._task = PeriodicTask(environment, "fencing check", lambda: PERIOD_MS, self.run)

    def start(self) -> None:
        self._task.schedule()

    async def stop(self) -> None:
        await self._task.stop()

    async def run(self) -> None:
        """Ask the other brokers, if the coordination service is silent and this broker is registered."""
        broker_id, epoch = self._identity.broker_id, self._identity.broker_epoch
        if self._is_connected() or epoch < 0:
            return
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
        for peer_id in list(self._image.brokers):
            if peer_id == broker_id:
                continue
            try:
                response = await self._peers.request(peer_id, request, VERSION, timeout_ms=TIMEOUT_MS)
            except PeerUnavailable:
                continue
            is_fenced = cast(BrokerHeartbeatResponse, response).is_fenced
            if is_fenced and epoch == self._identity.broker_epoch and not self._is_connected():
                self._on_fenced(epoch)
                return
