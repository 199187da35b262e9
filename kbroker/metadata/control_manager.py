"""What the managers of a controller share: the nodes as last read, one writer, one lock, and the rules of topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.metadata.replication.alter_partition import write_health_by_broker
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.leader_elections import NewConfigs, topic_rules
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Lock

    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import KnownBroker
    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.metadata.metadata_writer import MetadataWriter
    from kbroker.metadata.replication.partition_change import TopicRules
    from kbroker.runtime.environment import Clock


class PartitionOutcome(NamedTuple):
    """A partition in a response: why an operation on it was refused, None if it was not."""

    topic: str
    partition: int
    error: KafkaError | None


class ControllerContext(NamedTuple):
    """`lock`: operations run one at a time. `config` returns the broker's current configuration."""

    loader: MetadataLoader
    writer: MetadataWriter
    lock: Lock
    loop: AbstractEventLoop
    clock: Clock
    config: Callable[[], BrokerConfig]


class ControlManager:
    """A part of the controller. It acts only while this broker is elected.

    An operation takes the lock, calls `prepare` of the writer, decides on the image, and commits what it writes.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._loader, self._writer, self._lock, self._loop, self._clock, self._config = context
        self._image = self._loader.image

    def _check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Raise KafkaError (STALE_BROKER_EPOCH) unless a broker is registered with this epoch."""
        broker = self._loader.registrations.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.registration.epoch != broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {broker.registration.epoch}, but got broker epoch {broker_epoch}",
            )

    def _is_acceptable(self) -> Callable[[int], bool]:
        """Return the function that says whether a broker may lead: see acceptable_leaders."""
        return acceptable_leaders(self._loader.registrations).__contains__

    def _rules(
        self,
        topic_id: bytes,
        new_configs: NewConfigs | None = None,
        known: Mapping[int, KnownBroker] | None = None,
    ) -> TopicRules:
        """Return what affects the elections of a topic's partitions.

        `new_configs` replace those of their resource. `known`: the brokers, if they differ from the loaded ones.
        """
        write_health = write_health_by_broker(self._loader.registrations if known is None else known)
        return topic_rules(self._image, self._config(), topic_id, new_configs, write_health)
