"""Three brokers with coordinators, in virtual time: replicated logs in memory, elections, requests between brokers.

All partitions have three replicas, all in sync. A record is committed when all of them have it. Normally that happens
at once; `Cluster.held` lets a test decide which replica gets it when.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.group_shard import GroupKind
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.share.share_group_states import ShareGroupStates
from kbroker.coordinator.share.persister import ShareStatePersister
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerChannels, TransactionMarkerWriter
from kbroker.metadata.features import SHARE_VERSION, TRANSACTION_VERSION, FinalizedFeatures
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.producers.transactions import TransactionMarker, VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, build_batch, parse_header
from protocol.records.control import find_end_marker
from tests.unit.support.group_coordinator import DEFAULTS, FakeProducerIds, group_config
from tests.unit.support.handlers import respond
from tests.unit.support.internal_log import MemoryLog, VirtualLoop, virtual_environment
from tests.unit.support.share_coordinator import DEFAULTS as SHARE_DEFAULTS

T = TypeVar("T")
IDS = (1, 2, 3)
GROUPS, TRANSACTIONS = TopicPartition(GROUP_METADATA_TOPIC, 0), TopicPartition(TRANSACTION_STATE_TOPIC, 0)
SHARES = TopicPartition(SHARE_GROUP_STATE_TOPIC, 0)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
PARTITIONS = (GROUPS, TRANSACTIONS, A, B, SHARES)
REQUEST_MS = 1


class Replica(MemoryLog):
    """The replicas of one broker. Only the leader of a partition appends to it."""

    def __init__(self, cluster: "Cluster", broker_id: int) -> None:
        super().__init__()
        self.held = True
        self._cluster = cluster
        self._id = broker_id

    def check_leader(self, tp: TopicPartition) -> None:
        if not self._cluster.is_leader(self._id, tp):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        self.check_leader(tp)
        end_offset = super().append_internal(tp, batch, guard=guard, verify=verify)
        if not self._cluster.held:
            self._cluster.loop.call_soon(self._cluster.replicate, tp)
        return end_offset

    def max_append_bytes(self, tp: TopicPartition) -> int:
        self.check_leader(tp)
        return super().max_append_bytes(tp)

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        self.check_leader(tp)
        return super().begin_verification(tp, producer_id, epoch)

    def append_marker(
        self, tp: TopicPartition, marker: TransactionMarker, on_committed: Callable[[ErrorCode], None]
    ) -> None:
        if self._cluster.is_leader(self._id, tp):
            super().append_marker(tp, marker, on_committed)
        else:
            on_committed(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leader_end_offset(self, tp: TopicPartition, leader_epoch: int) -> int:
        self.check_leader(tp)
        if leader_epoch != self._cluster.partition(tp).leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.end_offset(tp)

    def copy_from(self, leader: "Replica", tp: TopicPartition) -> None:
        """Become equal to the leader's log."""
        self.batches[tp] = list(leader.batches.get(tp, []))
        self.rebuild_producers(tp)

    def rebuild_producers(self, tp: TopicPartition) -> None:
        producers = self.producers[tp] = ProducerStateManager()
        for batch in self.batches.get(tp, []):
            header = parse_header(batch)
            marker = find_end_marker(batch) if header.is_control else None
            if marker is not None:
                producers.end_transaction(header, header.base_offset, *marker)
            elif header.is_transactional:
                producers.update(header, header.base_offset)

    def advance(self, tp: TopicPartition, offset: int | None = None) -> None:
        """The high watermark reaches an offset, or the end of the log."""
        self.high_watermarks[tp] = self.end_offset(tp) if offset is None else offset
        for append in [waiting for waiting in self.waiting if waiting.tp == tp]:
            if append.offset <= self.high_watermarks[tp]:
                self.waiting.remove(append)
                append.callback(ErrorCode.NONE)

    def lose_leadership(self, tp: TopicPartition) -> None:
        for append in [waiting for waiting in self.waiting if waiting.tp == tp]:
            self.waiting.remove(append)
            append.callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Node:
    """One broker: its coordinators, its image, and the handlers of requests."""

    def __init__(self, cluster: "Cluster", broker_id: int, kinds: Sequence[type[GroupKind[Any]]]) -> None:
        self.id = broker_id
        self.is_alive = True
        # While this is set, images are collected and applied together later.
        self.is_behind = False
        self.image = MetadataImage()
        self.image.features = FinalizedFeatures(1, {TRANSACTION_VERSION: 2, SHARE_VERSION: 1})
        self.log = Replica(cluster, broker_id)
        config: Any = SimpleNamespace(
            **{**SHARE_DEFAULTS, **DEFAULTS, "node_id": broker_id, "offsets_topic_num_partitions": 1}
        )
        environment = virtual_environment(cluster.loop)
        peers = Peers(cluster, self)
        self.groups = GroupCoordinator(environment, self.log, self.image, lambda: config, kinds)
        local = TransactionMarkerWriter(self.log, self.groups)
        channels = TransactionMarkerChannels(environment, broker_id, self.image, lambda: 30_000, local, peers)
        ids: Any = cluster.producer_ids
        self.transactions = TransactionCoordinator(environment, self.log, self.image, lambda: config, ids, channels)
        self.share_states = ShareCoordinator(environment, self.log, self.image, lambda: config)
        topics: Any = None
        self.persister = ShareStatePersister(
            environment, broker_id, self.image, lambda: 30_000, self.share_states, topics, peers
        )
        self.share_group_states = ShareGroupStates(environment, self.image, self.groups, self.persister)
        config.group_config = partial(group_config, config)
        self.services: Any = SimpleNamespace(
            authorizer=None,
            audit=None,
            node_id=broker_id,
            config=config,
            environment=environment,
            metadata=self.image,
            replicas=self.log,
            groups=self.groups,
            transactions=self.transactions,
            share_states=self.share_states,
            share_group_states=self.share_group_states,
            add_partitions_to_txn=AddPartitionsToTxnManager(
                environment, broker_id, self.image, lambda: 30_000, self.transactions, peers
            ),
            marker_writer=local,
            producer_ids=ids,
        )

    def apply(self, delta: MetadataDelta) -> None:
        self.image.apply(delta)
        self.groups.on_delta(delta)
        self.transactions.on_delta(delta)
        self.share_states.on_delta(delta)

    async def serve(self, request: Any, version: int) -> Any:
        """Return the response of a request's handler. All is encoded and decoded, as on the wire."""
        return await respond(self.services, request, version)


class Peers:
    """The connections of a broker to the others. A request to a dead broker fails."""

    def __init__(self, cluster: "Cluster", node: Node) -> None:
        self._cluster = cluster
        self._node = node

    async def request(self, broker_id: int, request: Any, version: int, *, timeout_ms: int) -> Any:
        await asyncio.sleep(REQUEST_MS / 1000)
        peer = self._cluster.nodes[broker_id]
        if not (peer.is_alive and self._node.is_alive):
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        response = await peer.serve(request, version)
        await asyncio.sleep(REQUEST_MS / 1000)
        if not (peer.is_alive and self._node.is_alive):
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return response


class Cluster:
    """Broker 1 leads all partitions, except that 2 leads a-0 and 3 leads b-0."""

    def __init__(self, kinds: Sequence[type[GroupKind[Any]]] = GROUP_KINDS) -> None:
        self.loop = VirtualLoop()
        self.held = False
        self.producer_ids = FakeProducerIds()
        self.nodes = {broker_id: Node(self, broker_id, kinds) for broker_id in IDS}
        self._partitions: dict[TopicPartition, PartitionRegistration] = {}
        self._topic_ids = {tp: bytes([number]) * 16 for number, tp in enumerate(PARTITIONS)}
        for node in self.nodes.values():
            self.loop.run_until_complete(node.groups.start())
            self.loop.run_until_complete(node.transactions.start())
            self.loop.run_until_complete(node.share_states.start())
            brokers = {id: BrokerRegistration(id, f"broker-{id}", 9092) for id in IDS}
            node.apply(MetadataDelta(brokers=dict(brokers)))
        for tp, leader in ((GROUPS, 1), (TRANSACTIONS, 1), (A, 2), (B, 3), (SHARES, 1)):
            self._partitions[tp] = PartitionRegistration(leader, 0, list(IDS), list(IDS))
            self._announce(tp)
        self.loop.run_ready()

    def close(self) -> None:
        for node in self.nodes.values():
            self.loop.run_until_complete(node.transactions.stop())
            self.loop.run_until_complete(node.groups.stop())
            self.loop.run_until_complete(node.share_states.stop())
        self.loop.run_ready()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_ready()
        self.loop.close()

    def topic_id(self, tp: TopicPartition) -> bytes:
        return self._topic_ids[tp]

    def partition(self, tp: TopicPartition) -> PartitionRegistration:
        return self._partitions[tp]

    def leader(self, tp: TopicPartition) -> Node:
        return self.nodes[self._partitions[tp].leader]

    def is_leader(self, broker_id: int, tp: TopicPartition) -> bool:
        return self._partitions[tp].leader == broker_id and self.nodes[broker_id].is_alive

    # Replication.

    def replicate(self, tp: TopicPartition, *followers: int, commit: bool = True) -> None:
        """Copy the leader's log to followers, or to all and commit it."""
        leader = self.leader(tp)
        for broker_id in followers or IDS:
            if broker_id != leader.id:
                self.nodes[broker_id].log.copy_from(leader.log, tp)
        if not followers and commit:
            leader.log.advance(tp)

    def release(self) -> None:
        """Commit everything that was held."""
        self.held = False
        for tp in PARTITIONS:
            self.replicate(tp)

    # Elections.

    def elect(self, tp: TopicPartition, leader: int) -> None:
        """Elect a leader. What it has not got is lost; it commits what it has, unless `held`."""
        old, self._partitions[tp] = (
            self._partitions[tp],
            PartitionRegistration(leader, self._partitions[tp].leader_epoch + 1, list(IDS), list(IDS)),
        )
        self.nodes[old.leader].log.lose_leadership(tp)
        new = self.nodes[leader].log
        new.rebuild_producers(tp)
        self._announce(tp)
        if not self.held:
            self.loop.call_soon(self.replicate, tp)

    def kill(self, broker_id: int, successor: int) -> None:
        """Kill a broker. Another one leads its partitions."""
        node = self.nodes[broker_id]
        node.is_alive = False
        node.is_behind = True
        for tp in PARTITIONS:
            if self._partitions[tp].leader == broker_id:
                self.elect(tp, successor)

    def restart(self, broker_id: int) -> None:
        """A killed broker is back, with its role of now."""
        node = self.nodes[broker_id]
        node.groups.resign()
        node.transactions.resign()
        node.share_states.resign()
        node.is_alive = True
        self.catch_up(broker_id)

    def catch_up(self, broker_id: int) -> None:
        """Apply what a broker has missed, as one change."""
        node = self.nodes[broker_id]
        node.is_behind = False
        for tp in PARTITIONS:
            self._announce(tp, node)

    def _announce(self, tp: TopicPartition, *nodes: Node) -> None:
        """Show the current leader of a partition to brokers."""
        new = self._partitions[tp]
        for node in nodes or self.nodes.values():
            old = node.image.partition(*tp)
            if node.is_behind or (old is not None and old.leader_epoch == new.leader_epoch):
                continue
            topic = TopicImage(tp.topic, self._topic_ids[tp], False, {}, [new])
            change = PartitionChange(tp, topic.topic_id, old, new)
            delta = MetadataDelta(partitions=[change])
            (delta.created if old is None else delta.updated).append(topic)
            node.apply(delta)

    # Clients.

    def start(self, awaitable: Awaitable[T]) -> "asyncio.Task[T]":
        async def wait() -> T:
            return await awaitable

        return self.loop.create_task(wait())

    def request(self, tp: TopicPartition, request: Any, version: int) -> Any:
        """Return the response of the coordinator that leads a partition."""
        return self.loop.run_until_complete(self.leader(tp).serve(request, version))

    def begin_transaction(self, *partitions: TopicPartition, id: str = "t") -> tuple[int, int]:
        """Return a producer that has written to these partitions in an open transaction of version 2."""
        coordinator = self.leader(TRANSACTIONS).transactions
        producer: tuple[int, int] = self.loop.run_until_complete(coordinator.init_producer_id(id, 60_000))
        self.loop.run_until_complete(coordinator.add_partitions(id, *producer, partitions, 2))
        for tp in partitions:
            batch = build_batch(
                [(0, None, b"v", ())], attributes=TRANSACTIONAL, producer_id=producer[0], producer_epoch=producer[1],
                base_sequence=0,
            )  # fmt: skip
            self.leader(tp).log.append_internal(tp, batch)
        self.loop.run_ready()
        return producer

    def outcomes(self, *partitions: TopicPartition) -> dict[TopicPartition, set[bool]]:
        """Return the outcomes of transactions in partitions, as their leaders have them: True for a commit.

        None is in the set if a transaction is open.
        """
        found: dict[TopicPartition, set[Any]] = {}
        for tp in partitions:
            outcomes = found[tp] = set()
            open_producers = set()
            for batch in self.leader(tp).log.batches.get(tp, []):
                header = parse_header(batch)
                if header.is_control:
                    marker = find_end_marker(batch)
                    assert marker is not None
                    open_producers.discard(header.producer_id)
                    outcomes.add(marker.committed)
                elif header.is_transactional:
                    open_producers.add(header.producer_id)
            if open_producers:
                outcomes.add(None)
        return found
