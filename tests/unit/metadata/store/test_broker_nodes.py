"""The nodes of brokers: of this version, of one without their latest fields, and of a later one."""

import json

from kbroker.metadata.image import BrokerNode, BrokerRegistration, KnownBroker, WriteHealth
from kbroker.metadata.store import znodes

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
