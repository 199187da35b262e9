"""AutoTopicCreationManager: creates topics without a CreateTopics request of a client, as in Kafka."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.common import KafkaError, Principal
from kbroker.config import BrokerConfig
from kbroker.interbroker.controller_channel import BROKER_PRINCIPAL
from kbroker.metadata.controller import Controller
from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS
from kbroker.metadata.topics.topic_requests import NewTopic, new_internal_topic
from kbroker.runtime.audit_log import AuditLog, record_changes
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode, known_error

if TYPE_CHECKING:
    from kbroker.interbroker.controller_channel import ControllerChannel

log = EventLogger("kbroker.interbroker")

_CREATE_TOPICS_VERSION = 7
# How long to wait until this broker's image has a created topic, and how often to check, in seconds.
IMAGE_TIMEOUT_S = 5.0
IMAGE_POLL_S = 0.01
# As in Kafka.
MAX_FAILURES = 1000
DELETED_LATELY_MS = 5_000
# The principal and the host of the client whose request needs a topic.
Requester = tuple[Principal, str]
_SELF: Requester = BROKER_PRINCIPAL, ""


class AutoTopicCreationManager:
    """Creates the topic on this broker if it is the controller, else sends a CreateTopics to the controller.

    The caller has checked that the requester may create it. The controller checks it, too; what the broker creates for
    itself, such as an internal topic, is allowed.

    `channel`: None if the cluster has no other broker. `audit`: None without an audit log; the controller records what
    it creates for other brokers as their CreateTopics requests.
    """

    audit: AuditLog | None = None

    def __init__(
        self,
        environment: Environment,
        image: MetadataImage,
        controller: Controller,
        channel: ControllerChannel | None,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._image = image
        self._controller = controller
        self._channel = channel
        self._config = config
        # The topics that are being created in the background, and the reasons why that failed, with their time.
        self._creating: set[str] = set()
        self._failures: dict[str, tuple[str, int]] = {}
        self._tasks: set[Task[None]] = set()
        self._deleted_at_ms: dict[str, int] = {}

    def record_deletions(self, names: Iterable[str]) -> None:
        """Remember for DELETED_LATELY_MS that clients have deleted topics."""
        now_ms = self._environment.clock.mono_ms()
        remembered = {name: at_ms for name, at_ms in self._deleted_at_ms.items() if now_ms - at_ms < DELETED_LATELY_MS}
        self._deleted_at_ms = remembered | dict.fromkeys(names, now_ms)

    def deleted_lately(self, name: str) -> bool:
        at_ms = self._deleted_at_ms.get(name)
        return at_ms is not None and self._environment.clock.mono_ms() - at_ms < DELETED_LATELY_MS

    async def auto_create_topic(self, name: str, requester: Requester) -> TopicImage:
        """Return a topic; create it with the cluster's defaults if it does not exist. Raises KafkaError."""
        new = new_internal_topic(name, self._config()) if name in INTERNAL_TOPICS else NewTopic(name)
        return await self.ensure_topic(new, requester)

    async def ensure_internal_topic(self, name: str) -> TopicImage:
        """Return __consumer_offsets or __transaction_state; create it if it does not exist. Raises KafkaError."""
        return await self.ensure_topic(new_internal_topic(name, self._config()))

    async def ensure_topic(self, new: NewTopic, requester: Requester = _SELF) -> TopicImage:
        """Return a topic; create it if it does not exist. Raises KafkaError."""
        topic = self._image.topics.get(new.name)
        if topic is not None:
            return topic
        if self._channel is not None and not self._controller.is_elected:
            return await self._forward(self._channel, new, requester)
        (result,) = await self._controller.topics.create_topics([new], validate_only=False)
        if result.error is not None and result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise result.error
        if result.error is None:
            change = f"created with {result.partitions} partitions"
            sender = {"principal": str(requester[0]), "host": requester[1] or None, "api": "CreateTopics"}
            record_changes(self.audit, sender, [(f"TOPIC:{new.name}", change)])
        return self._image.topics[new.name]

    def begin_creation(self, topics: Iterable[NewTopic], remember_ms: int, requester: Requester) -> Mapping[str, str]:
        """Create topics in the background, unless that is in progress. Returns why some of them failed before."""
        now_ms = self._environment.clock.mono_ms()
        self._failures = {name: failure for name, failure in self._failures.items() if failure[1] > now_ms}
        missing = list(topics)
        new = [topic for topic in missing if topic.name not in self._creating]
        if new:
            self._creating.update(topic.name for topic in new)
            task = self._environment.loop.create_task(self._create(new, remember_ms, requester))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return {topic.name: self._failures[topic.name][0] for topic in missing if topic.name in self._failures}

    async def _create(self, topics: Iterable[NewTopic], remember_ms: int, requester: Requester) -> None:
        for topic in topics:
            try:
                await self.ensure_topic(topic, requester)
                self._failures.pop(topic.name, None)
            except Exception as error:
                reason = (error.message if isinstance(error, KafkaError) else None) or f"{error}"
                log.warning("an internal topic is not created", topic=topic.name, reason=reason)
                if len(self._failures) < MAX_FAILURES:
                    until_ms = self._environment.clock.mono_ms() + remember_ms
                    self._failures[topic.name] = reason, until_ms
            finally:
                self._creating.discard(topic.name)

    async def _forward(self, channel: ControllerChannel, new: NewTopic, requester: Requester) -> TopicImage:
        # Imported here because most brokers never create a topic.
        from protocol.messages.k19_create_topics import (
            CreatableTopic,
            CreatableTopicConfig,
            CreateTopicsRequest,
            CreateTopicsResponse,
        )

        creatable = CreatableTopic(
            name=new.name,
            num_partitions=new.partitions,
            replication_factor=new.replication_factor,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in new.configs],
        )
        timeout_ms = self._config().request_timeout_ms
        request = CreateTopicsRequest(topics=[creatable], timeout_ms=timeout_ms)
        response = await channel.forward(request, _CREATE_TOPICS_VERSION, None, *requester, timeout_ms)
        assert isinstance(response, CreateTopicsResponse)
        (result,) = response.topics
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(known_error(result.error_code), result.error_message)
        return await self._wait_for_image(new.name)

    async def _wait_for_image(self, name: str) -> TopicImage:
        """Return the topic when this broker's image has it. Raises KafkaError."""
        deadline_s = self._environment.loop.time() + IMAGE_TIMEOUT_S
        while self._environment.loop.time() < deadline_s:
            topic = self._image.topics.get(name)
            if topic is not None:
                return topic
            await self._environment.sleep(IMAGE_POLL_S)
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"This broker does not know the new topic '{name}' yet.")
