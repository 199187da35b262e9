"""The metadata image: which brokers may join in-sync replicas."""

from kbroker.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage


def test_only_unfenced_brokers_of_the_same_epoch_may_join_in_sync_replicas():
    image = MetadataImage()
    running = BrokerRegistration(1, "h", 1, epoch=7)
    stopping = BrokerRegistration(2, "h", 2, epoch=8, in_controlled_shutdown=True)
    fenced = BrokerRegistration(3, "h", 3, epoch=9)
    image.apply(MetadataDelta(brokers={1: running, 2: stopping}, fenced_brokers={3: fenced}))
    assert image.is_replica_eligible(1, 7)
    assert image.is_replica_eligible(1, -1)
    assert not image.is_replica_eligible(1, 6)
    assert not image.is_replica_eligible(2, 8)
    assert not image.is_replica_eligible(3, 9)
    assert not image.is_replica_eligible(4, -1)


def test_a_broker_is_fenced_and_unfenced():
    image = MetadataImage()
    broker = BrokerRegistration(1, "h", 1, epoch=7)
    image.apply(MetadataDelta(brokers={1: broker}))
    image.apply(MetadataDelta(brokers={1: None}, fenced_brokers={1: broker}))
    assert (image.brokers, image.fenced_brokers) == ({}, {1: broker})
    image.apply(MetadataDelta(brokers={1: broker}, fenced_brokers={1: None}))
    assert (image.brokers, image.fenced_brokers) == ({1: broker}, {})
