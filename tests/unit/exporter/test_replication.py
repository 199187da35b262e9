"""The metrics of a broker that follows others, and of the controller."""

from types import SimpleNamespace
from typing import Any

from kbroker.common import NO_LEADER, TopicPartition
from kbroker.exporter.families import MetricsPage
from kbroker.exporter.replication import ElectionCounter, collect_cluster, collect_fetchers
from kbroker.interbroker.peer_connection import PeerStats
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.replica.replication_throttle import unlimited_quota

ID = bytes(16)


def page_text(page: MetricsPage) -> str:
    return b"".join(page.parts()).decode()


def change(old: PartitionRegistration | None, new: PartitionRegistration | None) -> PartitionChange:
    return PartitionChange(TopicPartition("t", 0), ID, old, new)


def partition(leader: int, isr: list[int], elr: list[int] | None = None) -> PartitionRegistration:
    return PartitionRegistration(leader=leader, leader_epoch=0, replicas=[1, 2, 3], isr=isr, elr=elr or [])


def test_the_controller_counts_its_elections() -> None:
    controller: Any = SimpleNamespace(is_elected=True)
    counter = ElectionCounter(controller)
    counter.on_delta(
        MetadataDelta(
            partitions=[
                change(partition(1, [1, 2]), partition(2, [2])),
                change(partition(NO_LEADER, [], [3]), partition(3, [3])),
                change(partition(1, [1]), partition(2, [2])),
                # None of these is an election.
                change(partition(1, [1, 2]), partition(1, [1])),
                change(partition(1, [1]), partition(NO_LEADER, [], [1])),
                change(None, partition(1, [1, 2, 3])),
                change(partition(1, [1]), None),
            ]
        )
    )
    assert (counter.changes, counter.elections, counter.unclean, counter.from_elr) == (1, 3, 1, 1)
    counter.on_delta(MetadataDelta(partitions=[change(partition(1, [1, 2]), partition(1, [1]))]))
    controller.is_elected = False
    counter.on_delta(MetadataDelta(partitions=[change(partition(1, [1, 2]), partition(2, [2]))]))
    assert (counter.changes, counter.elections, counter.unclean) == (1, 3, 1)


def followed(index: int, leader: int, lag: int, offline: str | None = None) -> SimpleNamespace:
    log = SimpleNamespace(health=SimpleNamespace(offline=offline))
    return SimpleNamespace(
        leader_id=leader, lag=lag, partition=SimpleNamespace(tp=TopicPartition("orders", index), log=log)
    )


def rate_of(rate: int) -> Any:
    """Return a quota of which `rate` bytes were recorded in the current second."""
    quota = unlimited_quota()
    quota.record(rate, 5)
    return quota


def test_followed_partitions_and_throttled_rates() -> None:
    states = [followed(0, 2, 7), followed(1, 3, 0), followed(2, 3, -1), followed(3, 2, 3, "EIO")]
    services: Any = SimpleNamespace(
        peers=SimpleNamespace(stats=PeerStats()),
        environment=SimpleNamespace(clock=SimpleNamespace(mono_ms=lambda: 10)),
        fetching=SimpleNamespace(throttle=SimpleNamespace(quota=rate_of(2_000))),
    )
    fetchers: Any = SimpleNamespace(states=lambda: states, quota=rate_of(3_000))
    page = MetricsPage()
    list(collect_fetchers(services, fetchers, page))
    lines = page_text(page).splitlines()
    lag = "kafka_server_fetcherlagmetrics_consumerlag"
    assert [line for line in lines if line.startswith(lag)] == [
        f'{lag}{{clientId="ReplicaFetcherThread-0-2",partition="0",topic="orders"}} 7',
        f'{lag}{{clientId="ReplicaFetcherThread-0-3",partition="1",topic="orders"}} 0',
        f'{lag}{{clientId="ReplicaFetcherThread-0-2",partition="3",topic="orders"}} 3',
    ]
    assert 'kafka_server_replicafetchermanager_maxlag{clientId="Replica"} 7' in lines
    assert 'kafka_server_replicafetchermanager_failedpartitionscount{clientId="Replica"} 1' in lines
    assert "kafka_server_leaderreplication_byte_rate 2000.0" in lines
    assert "kafka_server_followerreplication_byte_rate 3000.0" in lines


def test_only_the_controller_reports_what_dashboards_add_up() -> None:
    image = MetadataImage()
    image.brokers = {id: BrokerRegistration(id, "::1", 9090 + id, None) for id in (1, 2)}
    image.topics = {"t": TopicImage("t", ID, partitions=[partition(NO_LEADER, []), partition(2, [2])])}
    image.controller_id = 1
    names = {}
    for node_id in (1, 2):
        page = MetricsPage()
        controller = SimpleNamespace(self_healing=SimpleNamespace(replicas_not_rebuilt=0))
        services: Any = SimpleNamespace(metadata=image, node_id=node_id, controller=controller)
        elections: Any = SimpleNamespace(changes=2, elections=3, unclean=1, from_elr=0)
        list(collect_cluster(services, elections, page))
        text = page_text(page)
        assert "kafka_controller_kafkacontroller_offlinepartitionscount 1" in text
        assert f"kafka_controller_kafkacontroller_activecontrollercount {int(node_id == 1)}" in text
        assert "kafka_controller_controllerstats_leaderelectionrateandtimems_count 2" in text
        assert ('kafka_broker_info{address="[::1]:9092",id="2"} 1' in text) == (node_id == 1)
        names[node_id] = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    assert names[1] - names[2] == {"kafka_brokers", "kafka_broker_info", "kafka_topic_partitions"}
    assert not names[2] - names[1]
