"""The share coordinator: schedules operations on the state of share partitions, and deletes records that are redundant.

    Initialize, Read, Write, Delete, ReadSummary -> the partition of __share_group_state that the key hashes to
    -> records are replayed in order, the response waits until they are committed

__share_group_state has the policy delete without retention: what precedes the oldest snapshot in use is deleted here.
"""

from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.internal_log import InternalLog, coordinator_error
from kbroker.coordinator.runtime.coordinator_context import ACTIVE, CoordinatorContext, RuntimeConfig
from kbroker.coordinator.runtime.coordinator_runtime import Coordinator
from kbroker.coordinator.runtime.operation import ORDERED, CoordinatorResult
from kbroker.coordinator.share.share_partition_state import PersistedState, SharePartitionKey, StateSummary, StateWrite
from kbroker.coordinator.share.share_shard import ShareShard
from kbroker.metadata.image import MetadataDelta, MetadataImage
from kbroker.metadata.topics.topic_names import SHARE_GROUP_STATE_TOPIC
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced

T = TypeVar("T")
log = EventLogger("kbroker.share_coordinator")

# Kafka's share.coordinator.state.topic.prune.interval.ms, which is internal.
PRUNE_INTERVAL_MS = 300_000


class ShareCoordinator(Coordinator[ShareShard]):
    """Methods return the future of a response, or raise KafkaError with the code for the leader that asks."""

    topic = SHARE_GROUP_STATE_TOPIC

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        metadata: MetadataImage,
        config: Callable[[], BrokerConfig],
    ) -> None:
        super().__init__(environment, internal_log, metadata, config)
        self._repeat("pruning of share states", lambda: PRUNE_INTERVAL_MS, self.prune)

    def _runtime_config(self, config: BrokerConfig) -> RuntimeConfig:
        return RuntimeConfig(
            node_id=config.node_id,
            partition_count=config.share_coordinator_state_topic_num_partitions,
            max_batch_bytes=config.message_max_bytes,
            load_buffer_bytes=config.share_coordinator_load_buffer_size,
            compression_codec=config.share_coordinator_state_topic_compression_codec,
            append_linger_ms=config.share_coordinator_append_linger_ms,
        )

    def _make_shard(self, context: CoordinatorContext[ShareShard]) -> ShareShard:
        return ShareShard(self._environment, self._metadata, self._config, context, partial(self._end_offset, context))

    def _end_offset(self, context: CoordinatorContext[ShareShard]) -> int:
        try:
            return self._log.leader_end_offset(context.tp, context.epoch)
        except KafkaError as error:
            raise KafkaError(coordinator_error(error.code)) from error

    def on_delta(self, delta: MetadataDelta) -> None:
        """Follow elections, and delete the state of deleted topics."""
        super().on_delta(delta)
        topic_ids = {topic.topic_id for topic in delta.deleted}
        if topic_ids:
            for context in self.runtime.contexts():
                context.shard.on_topics_deleted(topic_ids)

    # Operations.

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Future[None]:
        return self._write(key, lambda shard: shard.initialize(key, state_epoch, start_offset))

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Future[PersistedState]:
        return self._write(key, lambda shard: shard.read(key, leader_epoch))

    def write(self, key: SharePartitionKey, write: StateWrite) -> Future[None]:
        return self._write(key, lambda shard: shard.write(key, write))

    def delete(self, key: SharePartitionKey) -> Future[None]:
        return self._write(key, lambda shard: shard.delete(key))

    def read_summary(self, key: SharePartitionKey) -> Future[StateSummary]:
        return self._write(key, lambda shard: shard.read_summary(key))

    def _write(self, key: SharePartitionKey, operation: Callable[[ShareShard], CoordinatorResult[T]]) -> Future[T]:
        text = str(key)
        timeout_ms = self._config().share_coordinator_write_timeout_ms
        return self.runtime.context(text).schedule_write(operation, text, ORDERED, timeout_ms)

    # Pruning.

    async def prune(self) -> None:
        """Delete redundant records, and write snapshots of partitions that prevent that."""
        for context in self.runtime.contexts():
            if context.state is ACTIVE:
                self._prune(context)
                for key in paced(context.shard.cold_partitions()):
                    context.post(partial(ShareShard.snapshot_cold, key=key), str(key), ORDERED)

    def _prune(self, context: CoordinatorContext[ShareShard]) -> None:
        try:
            self._log.delete_before(context.tp, context.shard.redundant_before())
        except KafkaError as error:
            log.info("redundant records are not deleted yet", partition=context.tp, reason=error)
