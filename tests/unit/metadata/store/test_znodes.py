"""The nodes of brokers and topics: of this version, of one without their latest fields, and of a later one."""

import json

import pytest

from kbroker.coordination.interface import CoordinationError
from kbroker.metadata.features import FORMER_FEATURES, BrokerFeature
from kbroker.metadata.image import BrokerEndpoint, BrokerNode, BrokerRegistration, KnownBroker, WriteHealth
from kbroker.metadata.store import znodes
from kbroker.metadata.store.znodes import TopicNode, decode_topic, encode_topic

BROKER = BrokerRegistration(3, "h", 9092, "r", 7, "i", 9093, "d")


def test_the_write_health_is_stored_if_it_is_not_ok() -> None:
    assert b"write_health" not in znodes.encode_registration(KnownBroker(BROKER, False))
    for health in WriteHealth:
        broker = BROKER._replace(write_health=health)
        known, node = KnownBroker(broker, False), BrokerNode(broker, 5)
        assert znodes.decode_registration(3, znodes.encode_registration(known)) == known
        assert znodes.decode_broker(3, znodes.encode_broker(node)) == node


def test_fields_of_a_later_version_are_ignored() -> None:
    """Brokers are upgraded one by one, and read the nodes of those that already were."""
    fields = json.loads(znodes.encode_registration(KnownBroker(BROKER, True)))
    assert znodes.decode_registration(3, json.dumps({**fields, "new": [1]}).encode()) == KnownBroker(BROKER, True)


def test_a_broker_has_an_endpoint_for_each_listener() -> None:
    endpoints = (BrokerEndpoint("OUTSIDE", "h", 9092), BrokerEndpoint("INSIDE", "container", 19092, "SASL_SSL"))
    broker = BROKER._replace(endpoints=endpoints, features=(*FORMER_FEATURES, BrokerFeature("kbroker.users", 0, 1)))
    data = znodes.encode_broker(BrokerNode(broker, 5))
    assert znodes.decode_broker(3, data).registration == broker
    assert znodes.decode_registration(3, znodes.encode_registration(KnownBroker(broker, False))).registration == broker
    assert broker.endpoint("INSIDE") == endpoints[1]
    assert broker.endpoint("OTHER") is None
    # A broker of the version before reads only these.
    assert (json.loads(data)["host"], json.loads(data)["port"]) == ("h", 9092)


def test_a_broker_of_the_version_before_has_one_address_and_the_features_of_its_version() -> None:
    former = znodes.decode_registration(3, znodes.encode_registration(KnownBroker(BROKER, False))).registration
    assert former.endpoint("INSIDE") == BrokerEndpoint("INSIDE", "h", 9092)
    assert former.features == FORMER_FEATURES


def test_later_columns_of_endpoints_and_features_are_ignored() -> None:
    fields = json.loads(znodes.encode_broker(BrokerNode(BROKER)))
    rows = {"endpoints": [["A", "h", 1, "PLAINTEXT", "later"]], "features": [["f", 0, 3, "later"]]}
    registration = znodes.decode_broker(3, json.dumps(fields | rows).encode()).registration
    assert registration.endpoints == (BrokerEndpoint("A", "h", 1),)
    assert registration.features == (BrokerFeature("f", 0, 3),)


@pytest.mark.parametrize(
    "node", [TopicNode(b"1" * 16, False), TopicNode(b"2" * 16, True), TopicNode(b"3" * 16, True, True)]
)
def test_a_topic_is_decoded_as_it_was_encoded(node: TopicNode) -> None:
    assert decode_topic("t", encode_topic(node)) == node


def test_internal_topics_of_former_versions_keep_their_hash() -> None:
    former = znodes.encode({"id": "31" * 16, "internal": True})
    assert decode_topic("__consumer_offsets", former) == TopicNode(b"1" * 16, True, has_kafka_key_hash=False)


def test_an_unknown_hash_is_refused() -> None:
    """A later version may have another one; with the wrong one groups would lose their offsets."""
    later = znodes.encode({"id": "31" * 16, "internal": True, "hash": "murmur"})
    with pytest.raises(CoordinationError, match="unknown hash murmur"):
        decode_topic("__consumer_offsets", later)
