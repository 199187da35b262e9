"""Collects the samples about replication and the cluster: followed partitions, elections, other brokers."""

from collections.abc import Iterator

from kbroker.api.context import Services
from kbroker.common import NO_LEADER, format_address
from kbroker.exporter.families import MetricsPage, labels
from kbroker.interbroker.peer_connection import PeerStats
from kbroker.metadata.controller import Controller
from kbroker.metadata.image import MetadataDelta, PartitionChange, PartitionRegistration
from kbroker.metadata.replication.partition_change import original_replicas
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
from kbroker.replica.partition import Partition


class ElectionCounter:
    """`changes`: metadata changes in which leaders were elected. `elections`: partitions that got another leader.

    `unclean`: those whose new leader was neither in sync nor an eligible leader replica, and may lack committed
    records. `from_elr`: those whose new leader was an eligible leader replica (KIP-966). New partitions do not count. A
    broker counts while it is the controller.
    """

    def __init__(self, controller: Controller) -> None:
        self.changes = self.elections = self.unclean = self.from_elr = 0
        self._controller = controller

    def on_delta(self, delta: MetadataDelta) -> None:
        if not self._controller.is_elected:
            return
        elected = [change for change in delta.partitions if _is_election(change)]
        self.changes += bool(elected)
        self.elections += len(elected)
        self.unclean += sum(_is_unclean(change) for change in elected)
        self.from_elr += sum(_is_from_elr(change) for change in elected)


def _is_election(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and new.leader not in (old.leader, NO_LEADER)


def _is_unclean(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and new.leader not in old.isr and new.leader not in old.elr


def _is_from_elr(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and new.leader in old.elr


# The number of partitions or topics that are read in one step.
ITEMS_PER_STEP = 100

_CONTROLLER = "kafka_controller_kafkacontroller_"
_FETCHERS = "kafka_server_replicafetchermanager_"
# The client id of Kafka's metrics of all replica fetchers.
_REPLICA = labels(clientId="Replica")


def collect_cluster(services: Services, elections: ElectionCounter, page: MetricsPage) -> Iterator[None]:
    image = services.metadata
    is_controller = image.controller_id == services.node_id
    page.add(_CONTROLLER + "activecontrollercount", int(is_controller))
    page.add("kafka_server_kafkaserver_brokerstate", 3)
    page.add(_CONTROLLER + "activebrokercount", len(image.brokers))
    page.add(_CONTROLLER + "fencedbrokercount", len(image.fenced_brokers))
    page.add("kafka_controller_controllerstats_leaderelectionrateandtimems_count", elections.changes)
    page.add("kafka_controller_controllerstats_uncleanleaderelections_total", elections.unclean)
    page.add("kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total", elections.from_elr)
    page.add("kbroker_leader_elections_total", elections.elections)
    page.add("kbroker_replicas_not_rebuilt", services.controller.self_healing.replicas_not_rebuilt)
    if is_controller:
        page.add("kafka_brokers", len(image.brokers))
        for node in list(image.brokers.values()):
            page.add("kafka_broker_info", 1, labels(address=format_address(node.host, node.port), id=node.id))
    count = offline = imbalanced = recovering = 0
    topics = list(image.topics.values())
    page.add(_CONTROLLER + "globaltopiccount", len(topics))
    for number, topic in enumerate(topics):
        if is_controller:
            page.add("kafka_topic_partitions", len(topic.partitions), labels(topic=topic.name))
        count += len(topic.partitions)
        offline += sum(partition.leader < 0 for partition in topic.partitions)
        recovering += sum(partition.is_recovering for partition in topic.partitions)
        imbalanced += sum(partition.leader != partition.replicas[0] for partition in topic.partitions)
        if number % ITEMS_PER_STEP == 0:
            yield
    page.add(_CONTROLLER + "globalpartitioncount", count)
    page.add(_CONTROLLER + "offlinepartitionscount", offline)
    page.add(_CONTROLLER + "preferredreplicaimbalancecount", imbalanced)
    page.add("kbroker_partitions_recovering", recovering)


def collect_fetchers(services: Services, fetchers: ReplicaFetcherManager | None, page: MetricsPage) -> Iterator[None]:
    """Add the lag of the followed partitions, throttled rates, and connections to other brokers.

    A lone broker has none of them.
    """
    max_lag = failed = 0
    for number, state in enumerate([] if fetchers is None else fetchers.states()):
        if number % ITEMS_PER_STEP == 0:
            yield
        failed += state.partition.log.health.offline is not None
        if state.lag >= 0:
            max_lag = max(max_lag, state.lag)
            tp, client_id = state.partition.tp, f"ReplicaFetcherThread-0-{state.leader_id}"
            labelled = f'{{clientId="{client_id}",partition="{tp.partition}",topic="{tp.topic}"}}'
            page.add("kafka_server_fetcherlagmetrics_consumerlag", state.lag, labelled)
    now_ms = services.environment.clock.mono_ms()
    page.add("kafka_server_leaderreplication_byte_rate", services.fetching.throttle.quota.rate(now_ms))
    follower_rate = 0.0 if fetchers is None else fetchers.quota.rate(now_ms)
    page.add("kafka_server_followerreplication_byte_rate", follower_rate)
    page.add(_FETCHERS + "maxlag", max_lag, _REPLICA)
    page.add(_FETCHERS + "failedpartitionscount", failed, _REPLICA)
    stats = PeerStats() if services.peers is None else services.peers.stats
    page.add("kbroker_peer_connections", stats.connections)
    page.add("kbroker_peer_connection_failures_total", stats.connection_failures)
    page.add("kbroker_peer_requests_without_response_total", stats.requests_without_response)


def is_under_replicated(registration: PartitionRegistration) -> bool:
    """Return whether replicas are not in sync. As in Kafka, those that a reassignment adds are not missed."""
    return len(registration.isr) < len(original_replicas(registration))


def add_replicas(page: MetricsPage, labelled: str, partition: Partition, registration: PartitionRegistration) -> None:
    """Add the replicas of a partition. As in Kafka, those of partitions that others lead are 0."""
    replicas, isr = registration.replicas, registration.isr
    is_leader, min_isr = partition.is_leader, min(partition.log.config.min_insync_replicas, len(replicas))
    under_replicated = int(is_leader and is_under_replicated(registration))
    cluster = "kafka_cluster_partition_"
    page.add(cluster + "replicascount", len(replicas) if is_leader else 0, labelled)
    page.add(cluster + "insyncreplicascount", len(isr) if is_leader else 0, labelled)
    page.add(cluster + "underreplicated", under_replicated, labelled)
    page.add(cluster + "underminisr", int(is_leader and len(isr) < min_isr), labelled)
    page.add(cluster + "atminisr", int(is_leader and len(isr) == min_isr), labelled)
    page.add(cluster + "laststableoffsetlag", partition.high_watermark - partition.last_stable_offset, labelled)
    if not is_leader:
        return
    topic = "kafka_topic_partition_"
    page.add(topic + "replicas", len(replicas), labelled)
    page.add(topic + "in_sync_replica", len(isr), labelled)
    page.add(topic + "under_replicated_partition", under_replicated, labelled)
    page.add(topic + "leader", partition.state.local_id, labelled)
    page.add(topic + "leader_is_preferred", int(partition.state.local_id == replicas[0]), labelled)
    page.add(topic + "current_offset", partition.high_watermark, labelled)
    page.add(topic + "oldest_offset", partition.log.log_start_offset, labelled)
