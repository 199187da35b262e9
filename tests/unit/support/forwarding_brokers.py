"""Brokers that forward requests to a fake controller, on hosts of a simulated network.

`elect` makes a broker the controller, and tells the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.context import RequestContext, Services
from kbroker.api.dispatch import BROKER_LISTENER_APIS, Dispatch, load_handler
from kbroker.api.local_requests import DetachedConnection, awaited, handle_locally
from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.interbroker.controller_channel import ControllerChannel
from kbroker.metadata.image import MetadataDelta, TopicImage
from kbroker.metadata.replication.isr_change_queue import AlterPartitionResult, IsrRequest
from kbroker.metadata.replication.replication_control_manager import ReplicaKey
from kbroker.metadata.topics.create_topics import NewTopic
from kbroker.metadata.topics.topic_control_manager import CreateTopicResult
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.schema.message import Message, message_info
from tests.unit.support.peer_brokers import PeerBroker, PeerBrokers

CLIENT = "10.0.0.7:5000"


class FakeController:
    """A controller and its managers, whose topics have consecutive ids. `on_create` may raise or wait."""

    def __init__(self, broker: ForwardingBroker) -> None:
        self.is_elected = False
        self.topics = self.isr_changes = self.replication = self
        self.created: list[str] = []
        self.altered: list[tuple[int, str]] = []
        # (broker id, broker epoch, topic id) of each change of an ISR, which takes `delay_s`.
        self.shrunk: list[tuple[int, int, bytes]] = []
        self.delay_s = 0.0
        # The same of each replica whose log has failed.
        self.failed: list[tuple[int, int, bytes]] = []
        self._broker = broker

    async def on_create(self) -> None: ...

    async def create_topics(self, topics: Sequence[NewTopic], validate_only: bool) -> list[CreateTopicResult]:
        await self.on_create()
        if not self.is_elected:
            error = KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
            return [CreateTopicResult(topic.name, error=error) for topic in topics]
        results = []
        for topic in topics:
            if topic.name in self._broker.image.topics:
                results.append(
                    CreateTopicResult(topic.name, error=KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "exists"))
                )
                continue
            self.created.append(topic.name)
            image = TopicImage(topic.name, len(self.created).to_bytes(16, "big"))
            self._broker.brokers.publish(MetadataDelta(created=[image]))
            results.append(CreateTopicResult(topic.name, image.topic_id, topic.partitions, 3))
        return results

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, requests: Sequence[IsrRequest]
    ) -> list[AlterPartitionResult]:
        if not self.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        self.shrunk += [(broker_id, broker_epoch, request.topic_id) for request in requests]
        await asyncio.sleep(self.delay_s)
        return [ErrorCode.NONE for _ in requests]

    async def remove_failed_replicas(self, broker_id: int, broker_epoch: int, failed: Sequence[ReplicaKey]) -> None:
        if not self.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        self.failed += [(broker_id, broker_epoch, topic_id) for topic_id, _ in failed]

    async def alter_configs(self, resource_type: int, name: str, new_overrides: Any) -> None:
        if not self.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        new_overrides({})
        self.altered.append((resource_type, name))


class ForwardingBroker(PeerBroker):
    """A broker with the real handlers of brokers' APIs."""

    def __init__(self, brokers: ForwardingBrokers, broker_id: int) -> None:
        self.brokers = brokers
        super().__init__(brokers, broker_id, 10 * broker_id)
        self.server.context.dispatch = Dispatch(BROKER_LISTENER_APIS)
        self.controller = FakeController(self)
        self.config = BrokerConfig.load({"node.id": str(broker_id), "request.timeout.ms": "5000"})
        self.channel = ControllerChannel(self.environment, broker_id, self.image, self.peers, self._serve_locally)
        controller = cast(Any, self.controller)
        self.auto_topic_creation = AutoTopicCreationManager(
            self.environment, self.image, controller, self.channel, lambda: self.config
        )
        self.services = cast(
            Services,
            SimpleNamespace(
                node_id=broker_id, config=self.config, environment=self.environment, metadata=self.image,
                controller=self.controller, controller_channel=self.channel, peers=self.peers,
                auto_topic_creation=self.auto_topic_creation,
            ),
        )  # fmt: skip

    async def start(self) -> None:
        await super().start()
        self.server.context.services = self.services

    async def _serve_locally(self, request: Message, version: int) -> Message:
        identity = self.identity
        return await handle_locally(self.services, request, version, (identity.broker_id, identity.broker_epoch))

    def apply(self, delta: MetadataDelta) -> None:
        self.image.apply(delta)
        self.channel.on_delta(delta)

    async def handle(self, request: Message, version: int) -> Any:
        """Handle a client's request."""
        key = message_info(type(request)).key
        handler = load_handler(ApiKey(key or 0), version)
        context = RequestContext(DetachedConnection(CLIENT, None), handler, version, 1, "an app", 0)
        return await awaited(handler.handle(self.services, context, request))


class ForwardingBrokers(PeerBrokers):
    """Brokers 1, 2 and 3. The controller is 1."""

    async def start(self) -> None:
        self.brokers = {}
        self.one, self.two, self.three = (ForwardingBroker(self, broker_id) for broker_id in (1, 2, 3))
        for broker in (self.one, self.two, self.three):
            self.brokers[broker.id] = broker
            await broker.loop.run(broker.start())
        self.introduce()
        self.elect(self.one)

    def elect(self, controller: ForwardingBroker, *, known_to: Sequence[ForwardingBroker] | None = None) -> None:
        for broker in (self.one, self.two, self.three):
            broker.controller.is_elected = broker is controller
        for broker in known_to if known_to is not None else (self.one, self.two, self.three):
            broker.apply(MetadataDelta(controller_id=controller.id))

    def publish(self, delta: MetadataDelta) -> None:
        """Apply a delta at each broker, after a while."""
        for broker in (self.one, self.two, self.three):
            if not broker.loop.dead:
                broker.loop.call_later(0.05 if not broker.controller.is_elected else 0, broker.apply, delta)
