"""AutoTopicCreationManager: creates topics without a CreateTopics request of a client, as in Kafka."""

from collections.abc import Callable

from kbroker.common import ANONYMOUS, KafkaError
from kbroker.config import BrokerConfig
from kbroker.interbroker.controller_channel import ControllerChannel
from kbroker.metadata.controller import Controller
from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS
from kbroker.metadata.topics.topic_requests import NewTopic, new_internal_topic
from kbroker.runtime.environment import Environment
from protocol.errors import ErrorCode, known_error

_CREATE_TOPICS_VERSION = 7
# How long to wait until this broker's image has a created topic, and how often to check, in seconds.
IMAGE_TIMEOUT_S = 5.0
IMAGE_POLL_S = 0.01


class AutoTopicCreationManager:
    """Creates the topic on this broker if it is the controller, else sends a CreateTopics to the controller.

    `channel`: None if the cluster has no other broker.
    """

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

    async def auto_create_topic(self, name: str) -> TopicImage:
        """Return a topic; create it with the cluster's defaults if it does not exist. Raises KafkaError."""
        if name in INTERNAL_TOPICS:
            return await self.ensure_internal_topic(name)
        return await self.ensure_topic(NewTopic(name))

    async def ensure_internal_topic(self, name: str) -> TopicImage:
        """Return __consumer_offsets or __transaction_state; create it if it does not exist. Raises KafkaError."""
        return await self.ensure_topic(new_internal_topic(name, self._config()))

    async def ensure_topic(self, new: NewTopic) -> TopicImage:
        """Return a topic; create it if it does not exist. Raises KafkaError."""
        topic = self._image.topics.get(new.name)
        if topic is not None:
            return topic
        if self._channel is not None and not self._controller.is_elected:
            return await self._forward(self._channel, new)
        (result,) = await self._controller.topics.create_topics([new], validate_only=False)
        if result.error is not None and result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise result.error
        return self._image.topics[new.name]

    async def _forward(self, channel: ControllerChannel, new: NewTopic) -> TopicImage:
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
        response = await channel.forward(request, _CREATE_TOPICS_VERSION, None, ANONYMOUS, "", timeout_ms)
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
