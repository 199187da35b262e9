"""Detects that this broker is fenced, or cut off from all others.

*Cut off from the coordination service.* A broker keeps its roles at first: its session may still exist, and an outage
of the service must not become an outage of the brokers. But if only this broker is cut off, its session expires, and
other brokers become the leaders of its partitions, while it still refers clients to itself. So while the service is
silent, it asks the other brokers with BrokerHeartbeat requests, as KRaft brokers ask the controller. Being fenced in a
broker epoch is final, so any broker may report it, even with an old image. This also detects that an operator has
deleted the node of a broker whose session exists.

*The controller, cut off from all other brokers.* As long as the coordination service reaches it, it would stay the
controller, although no other broker could change ISRs, topics or configs. So a controller always asks the other
brokers, see isolation.py. Only responses count: if the network is cut in one direction, requests of other brokers may
still arrive.

*Another broker, cut off from all other brokers.* It would keep its leaderships, though no broker could follow it. In
KRaft the controller fences a broker whose heartbeats do not arrive. Here the broker ends its session, provided that the
controller is silent, too. A broker that any other broker reaches keeps its roles, since that one relays its requests to
the controller. When an isolated broker has joined again, it leads only partitions that no other broker can lead, and
keeps these.

*Cut off from the service and from all brokers.* The broker has probably been replaced, and nothing can tell it. It
gives up its roles, so that clients that still reach it ask other brokers. Even before its session can have expired, it
stops returning the latest offsets of its partitions, and refuses no offset as out of range
(ReplicaManager.may_be_replaced). A client that has seen an offset of the new leader would otherwise conclude that
records were lost, as Spark's streaming queries do, or reset its position. For this, each broker always asks a few
others.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from kbroker.interbroker.handshake import BrokerIdentity, HandshakeError
from kbroker.interbroker.isolation import (
    Contact,
    Isolation,
    can_be_replaced,
    min_silent_brokers,
    must_ask_all,
    others_are_silent,
)
from kbroker.interbroker.peers import Peers, PeerUnavailable
from kbroker.metadata.image import MetadataImage
from kbroker.runtime.environment import Environment
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.messages.k63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

VERSION = 2
PERIOD_MS = 1000
# The timeout of a request, including connecting, is a third of the session timeout, within these bounds. With a shorter
# one, a slow connection would always be closed as silent before it could be used.
MIN_TIMEOUT_MS = 3000
MAX_TIMEOUT_MS = 6000
# How many brokers a broker asks while nothing suggests that it is cut off. Each round asks the next ones in turn.
SAMPLE = 3


class FencingCheck:
    """`is_connected`: whether the coordination service responds. `is_controller`: whether this broker is elected.

    `on_fenced` is called with the broker epoch. So is `on_isolated`, if no other broker responds, and this one is the
    controller, or leads partitions that others can lead, or the coordination service does not respond either.
    """

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        image: MetadataImage,
        peers: Peers,
        session_timeout_ms: Callable[[], int],
        is_connected: Callable[[], bool],
        is_controller: Callable[[], bool],
        on_fenced: Callable[[int], None],
        on_isolated: Callable[[int], None],
    ) -> None:
        self._identity = identity
        self._image = image
        self._peers = peers
        self._session_timeout_ms = session_timeout_ms
        self._is_connected = is_connected
        self._is_controller = is_controller
        self._on_fenced = on_fenced
        self._on_isolated = on_isolated
        self._mono_ms = environment.clock.mono_ms
        self._isolation = Isolation()
        self._was_connected = True
        self._asked_first = 0
        self._are_others_silent = False
        self._task = PeriodicTask(environment, "fencing check", lambda: PERIOD_MS, self.run)

    def start(self) -> None:
        self._task.schedule()

    async def stop(self) -> None:
        await self._task.stop()

    @property
    def is_in_doubt(self) -> bool:
        """Whether the coordination service is silent, and so were all brokers of the last round."""
        return self._are_others_silent and not self._is_connected()

    async def run(self) -> None:
        """Ask all other brokers if this one is the controller or may be cut off, else a few."""
        epoch, is_connected = self._identity.broker_epoch, self._is_connected()
        if is_connected != self._was_connected:
            self._was_connected = is_connected
            self._isolation.reset()
        asks_all = must_ask_all(
            is_connected=is_connected, is_controller=self._is_controller(), are_others_silent=self._are_others_silent
        )
        others = [broker_id for broker_id in self._image.brokers if broker_id != self._identity.broker_id]
        begin_ms = self._mono_ms()
        contacts = await self._ask_each(others if asks_all else self._sample(others), epoch) if epoch >= 0 else {}
        self._are_others_silent = others_are_silent(contacts.values())
        if not asks_all or epoch != self._identity.broker_epoch or is_connected != self._is_connected():
            self._isolation.reset()
            return
        if self._is_isolated(contacts, begin_ms, is_connected):
            self._isolation.reset()
            self._on_isolated(epoch)

    def _sample(self, others: list[int]) -> list[int]:
        begin = self._asked_first % max(len(others), 1)
        self._asked_first = begin + SAMPLE
        return (others[begin:] + others[:begin])[:SAMPLE]

    def _is_isolated(self, contacts: Mapping[int, Contact], begin_ms: int, is_connected: bool) -> bool:
        """Record a round of requests to all brokers since `begin_ms`. Returns whether to give up all roles."""
        is_controller = self._is_controller()
        min_silent = min_silent_brokers(
            is_connected=is_connected, is_controller=is_controller, controller=contacts.get(self._image.controller_id)
        )
        if min_silent is None:
            self._isolation.reset()
            return False
        self._isolation.observe(contacts.values(), begin_ms, self._mono_ms(), min_silent)
        if not self._isolation.is_isolated(self._session_timeout_ms()):
            return False
        partitions = (partition for _, partition in self._image.partitions())
        return not is_connected or is_controller or can_be_replaced(self._identity.broker_id, partitions)

    async def _ask_each(self, brokers: Sequence[int], epoch: int) -> dict[int, Contact]:
        contacts = await asyncio.gather(*(self._ask(broker_id, epoch) for broker_id in brokers))
        return dict(zip(brokers, contacts, strict=True))

    async def _ask(self, broker_id: int, epoch: int) -> Contact:
        """Ask another broker whether this one is fenced in its epoch."""
        request = BrokerHeartbeatRequest(broker_id=self._identity.broker_id, broker_epoch=epoch)
        try:
            response = await self._peers.request(broker_id, request, VERSION, timeout_ms=self._timeout_ms())
        except PeerUnavailable as error:
            return _contact(error.__cause__)
        is_fenced = cast(BrokerHeartbeatResponse, response).is_fenced
        if is_fenced and epoch == self._identity.broker_epoch:
            self._on_fenced(epoch)
        return Contact.RESPONSE

    def _timeout_ms(self) -> int:
        return max(MIN_TIMEOUT_MS, min(MAX_TIMEOUT_MS, self._session_timeout_ms() // 3))


def _contact(cause: BaseException | None) -> Contact:
    """Return the contact that a failure to connect to a broker stands for."""
    if isinstance(cause, HandshakeError):
        # Also a failed TLS handshake: with expired certificates, all leaders would give up their roles otherwise.
        return Contact.RESPONSE
    return Contact.REFUSED if isinstance(cause, ConnectionRefusedError) else Contact.SILENCE
