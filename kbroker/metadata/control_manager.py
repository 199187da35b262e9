"""What the managers of a controller share: the nodes as last read, one writer, one lock, and the rules of topics.

MetadataWriter writes the changes of the elected controller: each is one numbered multi, fenced by the controller epoch.
A multi begins with two checks: that the controller epoch is still the one of this broker's election, and that no other
change was written since this broker last read znodes.CHANGES.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordination.interface import (
    BadVersion,
    Check,
    Coordination,
    CoordinationError,
    Create,
    NodeExists,
    Op,
    SessionExpired,
    Set,
    Unavailable,
    batches,
)
from kbroker.metadata.image import KnownBroker
from kbroker.metadata.metadata_loader import MetadataLoader
from kbroker.metadata.recovery.deleted_topics import deletion_ops
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import TopicRules
from kbroker.metadata.replication.partition_requests import NewConfigs, topic_rules, write_health_by_broker
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import Writer, change_ops
from kbroker.runtime.environment import Environment
from protocol.errors import ErrorCode


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
    environment: Environment
    config: Callable[[], BrokerConfig]


class ControlManager:
    """A part of the controller. It acts only while this broker is elected.

    An operation takes the lock, calls `prepare` of the writer, decides on the image, and commits what it writes.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._loader, self._writer, self._lock, self._environment, self._config = context
        self._loop, self._clock = self._environment.loop, self._environment.clock
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

    async def _ensure_directory(self, path: str) -> None:
        """Create a parent of nodes that the version which has created the cluster did not know. Raises KafkaError."""
        if await self._writer.coordination.exists(path) is None:
            await self._writer.commit([Create(path, b"")])

    def _is_acceptable(self) -> Callable[[int], bool]:
        """Return the function that says whether a broker may lead: see acceptable_leaders."""
        return acceptable_leaders(self._loader.registrations).__contains__

    def _rules(
        self, topic_id: bytes, new_configs: NewConfigs | None = None, known: Mapping[int, KnownBroker] | None = None
    ) -> TopicRules:
        """Return what affects the elections of a topic's partitions.

        `new_configs` replace those of their resource. `known`: the brokers, if they differ from the loaded ones.
        """
        write_health = write_health_by_broker(self._loader.registrations if known is None else known)
        return topic_rules(self._image, self._config(), topic_id, new_configs, write_health)


# After an operation has timed out waiting for the service, others fail immediately for this time in seconds, and while
# the session is not connected.
RETRY_BACKOFF_S = 1.0


class MetadataWriter:
    """Used by one operation at a time: it calls `prepare`, decides on the loader's image, and calls `commit`."""

    def __init__(
        self, environment: Environment, node_id: int, coordination: Coordination, loader: MetadataLoader
    ) -> None:
        self.node_id = node_id
        self.coordination = coordination
        self._loader = loader
        self._loop = environment.loop
        self._clock = environment.clock
        # With the epoch, the name of this controller in the change log: no other history of the cluster has it. It is
        # the wall clock, the broker and a counter. And the number that the next change exceeds.
        self._name = ""
        self._names = self._min_number = 0
        # The controller epoch of this broker's last election.
        self.epoch = 0
        # The version of the controller epoch's node, which a later election changes; None while not elected.
        self._epoch_version: int | None = None
        # The epoch of a campaign whose outcome is unknown, 0 if there is none.
        self._unknown_epoch = 0
        # Whether this broker may have written a change that the image does not have yet.
        self._image_may_be_stale = False
        self._retry_at = 0.0
        # Whether the last operation that needed the service has timed out waiting for it.
        self._is_down = False

    @property
    def is_elected(self) -> bool:
        return self._epoch_version is not None

    def resign(self) -> None:
        """Stop writing: another broker may be the controller now."""
        self._epoch_version = None

    def use_session(self, coordination: Coordination) -> None:
        self.resign()
        self.coordination, self._unknown_epoch = coordination, 0

    async def campaign(self, last_epoch: int = 0) -> bool:
        """Become the controller if there is none; return whether it succeeded. Raises CoordinationError.

        `last_epoch`: the highest controller epoch that this broker has seen; the service may have an older copy. After
        Unavailable, the next call finds out whether the former one has succeeded.
        """
        if self._unknown_epoch:
            await self.coordination.sync()
        node = await self.coordination.get(znodes.CONTROLLER_EPOCH)
        epoch = znodes.decode(znodes.CONTROLLER_EPOCH, node.data)["epoch"]
        if epoch == self._unknown_epoch and await self._owns_controller_node():
            self._become_elected(epoch, node.version)
            return True
        epoch = max(epoch, last_epoch) + 1
        try:
            await self.coordination.multi(
                [
                    Set(znodes.CONTROLLER_EPOCH, znodes.encode({"epoch": epoch}), node.version, per_session=True),
                    Create(znodes.CONTROLLER, znodes.encode({"broker": self.node_id}), ephemeral=True),
                ]
            )
        except (NodeExists, BadVersion):
            return False
        except Unavailable:
            self._unknown_epoch = epoch
            raise
        self._become_elected(epoch, node.version + 1)
        return True

    async def _owns_controller_node(self) -> bool:
        (node,) = await self.coordination.get_many([znodes.CONTROLLER])
        return node is not None and node.owner == self.coordination.session_id

    def _become_elected(self, epoch: int, version: int) -> None:
        self._epoch_version, self.epoch, self._unknown_epoch = version, epoch, 0
        self.begin_history(0)
        # The image may not have the last changes of the former controller.
        self._image_may_be_stale = True

    def begin_history(self, min_number: int) -> None:
        """Write the next changes under a new name, with numbers above `min_number` (metadata/recovery)."""
        self._names += 1
        self._name = f"{self._clock.now_ms():x}-{self.node_id}-{self._names}"
        self._min_number = min_number

    async def refresh(self) -> None:
        """Read what other brokers may have written since. Raises KafkaError."""
        self._image_may_be_stale = True
        await self.prepare()

    async def prepare(self) -> None:
        """Raise KafkaError unless this broker is elected and its image has all its own changes.

        Without the service, a refusal that rests on the image (UNKNOWN_TOPIC_ID, TOPIC_ALREADY_EXISTS) would not be
        fenced as a write is: another broker may have been elected, and have written since.
        """
        if self._epoch_version is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        if not self._image_may_be_stale and self.coordination.is_connected:
            return
        if self._loop.time() < self._retry_at or (self._is_down and not self.coordination.is_connected):
            raise self._to_kafka_error(Unavailable("", "the service cannot be reached"))
        try:
            await self.coordination.sync()
            await self._loader.catch_up()
        except CoordinationError as error:
            self._retry_at, self._is_down = self._loop.time() + RETRY_BACKOFF_S, True
            raise self._to_kafka_error(error) from error
        self._image_may_be_stale = self._is_down = False

    async def commit_all(self, ops: Iterable[Op]) -> None:
        """Write operations in as few changes as their size allows, and wait for each. Raises KafkaError."""
        for batch in batches(ops):
            await self.commit(batch)

    async def commit(self, ops: Sequence[Op], deleted_topics: Sequence[bytes] = ()) -> None:
        """Write one change, and wait until this broker's image has it. Raises KafkaError.

        `deleted_topics`: the ids of the topics that it deletes (recovery/deleted_topics.py).
        """
        try:
            await self.write(ops, deleted_topics)
        except (SessionExpired, Unavailable) as error:
            # The change may have been written: NOT_CONTROLLER would have the request repeated elsewhere.
            raise _timeout(error) from error
        except CoordinationError as error:
            raise self._to_kafka_error(error) from error

    async def write(self, ops: Sequence[Op], deleted_topics: Sequence[bytes] = ()) -> None:
        """Like commit, but raises CoordinationError."""
        if self._epoch_version is None:
            raise BadVersion(znodes.CONTROLLER_EPOCH)
        epoch_version, log = self._epoch_version, self._loader.change_log
        number = max(log.number, self._min_number) + 1
        writers = log.writers
        if not writers or writers[-1][:2] != (self.epoch, self._name):
            writers = (*writers, Writer(self.epoch, self._name, log.number, number))
        try:
            records = await deletion_ops(self.coordination, deleted_topics) if deleted_topics else []
            await self.coordination.multi(
                [
                    Check(znodes.CONTROLLER_EPOCH, epoch_version),
                    *change_ops(number, ops, self._loader.change_log_version, writers),
                    *ops,
                    *records,
                ]
            )
            await self._loader.catch_up()
        except CoordinationError as error:
            self._note_failure(error)
            raise

    def _note_failure(self, error: CoordinationError) -> None:
        """Record what a failure means for later operations."""
        if isinstance(error, SessionExpired) or (
            isinstance(error, BadVersion) and error.path == znodes.CONTROLLER_EPOCH
        ):
            self.resign()
        elif isinstance(error, Unavailable | BadVersion):
            self._image_may_be_stale = True

    def _to_kafka_error(self, error: CoordinationError) -> KafkaError:
        """Record a failure, and return the error for the client."""
        self._note_failure(error)
        if not self.is_elected:
            return KafkaError(ErrorCode.NOT_CONTROLLER, "Another broker is the controller now.")
        if isinstance(error, Unavailable | BadVersion):
            # The client may retry.
            return _timeout(error)
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, _message(error))


def _timeout(error: CoordinationError) -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, _message(error))


def _message(error: CoordinationError) -> str:
    return f"Coordination failed: {error}"
