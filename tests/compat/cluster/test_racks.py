"""Racks: replicas are spread over them, and a consumer reads from the replica in its own (KIP-392)."""

import json

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import DEADLINE_S, eventually, unique


def test_the_replicas_of_a_partition_are_in_different_racks(cluster: Cluster) -> None:
    name = unique("racks")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 6, 3)])[name].result(DEADLINE_S)
    description = admin.list_topics(name, DEADLINE_S).topics[name]
    assert all(sorted(part.replicas) == [1, 2, 3] for part in description.partitions.values())
    leaders = [part.leader for part in description.partitions.values()]
    assert {leaders.count(node_id) for node_id in (1, 2, 3)} == {2}, "leadership is spread evenly"


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: Cluster) -> None:
    topic = create_topic(cluster, [[1, 2, 3]])
    with working(cluster, topic, 1):
        received = bytes_received_by_broker(cluster, topic, "rack-3")
        # The first fetch goes to the leader, which names the replica in the consumer's rack.
        assert received["3"] > received["1"]
        assert received["2"] == 0


def bytes_received_by_broker(cluster: Cluster, topic: str, rack: str) -> dict[str, int]:
    """Read the topic while it grows, and return the bytes of Fetch responses with records, by broker."""
    statistics: dict[str, int] = {}

    def on_statistics(text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            statistics[str(broker["nodeid"])] = broker["rxbytes"] if broker["req"].get("Fetch") else 0

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": unique("rack"),
            "client.rack": rack,
            "enable.auto.commit": False,
            "statistics.interval.ms": 200,
            "stats_cb": on_statistics,
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read = 0

        def is_enough() -> bool:
            nonlocal read
            read += sum(1 for message in consumer.consume(100, timeout=0.2) if not message.error())
            return read > 100 and len(statistics) > 2 and statistics.get("3", 0) > statistics.get("1", 0)

        eventually(is_enough, "records from the replica in the rack", interval=0)
    finally:
        consumer.close()
    return {node_id: statistics.get(node_id, 0) for node_id in ("1", "2", "3")}
