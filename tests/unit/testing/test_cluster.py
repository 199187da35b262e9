"""A cluster inside a test: leaders move, brokers end and come back, all on one clock."""

from collections.abc import Iterator

import pytest

from kbroker.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


def test_a_leader_moves_where_the_test_wants_it(cluster: Cluster):
    topic = cluster.topic(partitions=2)
    cluster.produce(topic, [b"0", b"1"])
    for broker in (2, 3):
        cluster.move_leader(topic, 0, to=broker)
        assert cluster.leader(topic, 0) == broker
    single = cluster.topic(replication_factor=1)
    cluster.produce(single, [b"v"])
    target = next(broker for broker in (1, 2, 3) if broker != cluster.leader(single, 0))
    cluster.move_leader(single, 0, to=target)
    assert [record.value for record in cluster.consume(single)] == [b"v"]
    assert len(cluster.consume(topic)) == 2


def test_others_lead_when_a_broker_is_killed_and_it_comes_back(cluster: Cluster):
    topic = cluster.topic()
    cluster.produce(topic, [b"before"])
    leader = cluster.leader(topic, 0)
    addresses = cluster.bootstrap
    cluster.kill(leader)
    cluster.produce(topic, [b"after"])
    assert cluster.leader(topic, 0) != leader
    cluster.start(leader)
    assert cluster.bootstrap == addresses
    cluster.move_leader(topic, 0, to=leader)
    assert [record.value for record in cluster.consume(topic)] == [b"before", b"after"]


def test_a_jump_of_the_clock_is_one_for_all_brokers(cluster: Cluster):
    topic = cluster.topic(config={"retention.ms": 3_600_000})
    cluster.produce(topic, [b"old"])
    leader = cluster.leader(topic, 0)
    cluster.clock.advance(hours=2)
    assert cluster.consume(topic) == []
    cluster.produce(topic, [b"new"])
    assert [record.value for record in cluster.consume(topic, n=1)] == [b"new"]
    assert cluster.leader(topic, 0) == leader
