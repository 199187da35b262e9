"""What all connections of the inter-broker listener share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.interbroker.frame_protocol import PeerFrameBuffers
from kbroker.server.fair_scheduler import FairScheduler
from kbroker.server.server_context import SharedContext

if TYPE_CHECKING:
    from kbroker.api.dispatch import Dispatch
    from kbroker.interbroker.handshake import BrokerIdentity
    from kbroker.runtime.environment import Environment


class InterBrokerContext(SharedContext):
    """Nothing here is shared with clients: neither the scheduling of expensive requests nor the memory of requests."""

    def __init__(self, environment: Environment, identity: BrokerIdentity, dispatch: Dispatch) -> None:
        loop = environment.loop
        super().__init__(environment, dispatch, FairScheduler(loop.call_soon, loop.call_later, lambda: 0))
        self.identity = identity
        self.buffers = PeerFrameBuffers()
        self.turns = environment.turns
        self.randbytes = environment.random.randbytes
        self.max_request_bytes = 0
