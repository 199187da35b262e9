"""Which clients push which metrics: the patterns of subscriptions, and several of them together."""

from uuid import UUID

import pytest

from kbroker.config.values import ConfigError
from kbroker.telemetry.subscriptions import ClientAttributes, MetricsSubscription, subscription_of

CLIENT = ClientAttributes("AAAA", "app-1", "apache-kafka-java", "4.4.0", "127.0.0.1", "1234")
ID = UUID("b9e8c2d0-3c8e-4c0e-8f0b-0a1b2c3d4e5f").bytes


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("", True),
        ("client_id=app-1", True),
        ("client_id=app", False),
        ("client_id=app.*", True),
        ("client_id=.*,client_software_version=4[.].*", True),
        ("client_id=.*,client_software_version=3[.].*", False),
        ("client_source_address=127.0.0.1, client_source_port = 12[0-9]+", True),
        ("client_instance_id=AAAA,client_software_name=apache-kafka-java", True),
    ],
)
def test_all_patterns_match_the_whole_value(match: str, matches: bool):
    assert MetricsSubscription({"match": match}).matches(CLIENT) is matches


def test_a_pattern_that_re2_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="Illegal client matching pattern: client_id=\\(a\\)\\\\1"):
        MetricsSubscription({"match": r"client_id=(a)\1"})


def combined(*configs: dict[str, str]) -> tuple[tuple[str, ...], int]:
    found = subscription_of(ID, CLIENT, map(MetricsSubscription, configs))
    return found.metrics, found.push_interval_ms


def test_several_subscriptions_are_one():
    producers = {"metrics": "org.apache.kafka.producer.,a", "interval.ms": "60000"}
    others = {"metrics": "a,b", "interval.ms": "30000", "match": "client_id=app.*"}
    assert combined() == ((), 300_000)
    assert combined(producers) == (("a", "org.apache.kafka.producer."), 60_000)
    assert combined(producers, others) == (("a", "b", "org.apache.kafka.producer."), 30_000)
    assert combined(producers, {"metrics": "*", "match": "client_id=other"}) == combined(producers)
    assert combined(producers, {"metrics": "*"}) == (("*",), 60_000)
    # As in Kafka, five minutes is the longest interval.
    assert combined({"metrics": "a", "interval.ms": "3600000"}) == (("a",), 300_000)
