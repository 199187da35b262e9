"""Which entities and quotas a request may name. The story of tests/compat/wire has the errors of Kafka 4.4.0."""

import pytest

from kbroker.common import KafkaError
from kbroker.quotas.entities import QuotaEntity, altered_quotas, check_entity, normal_address


def test_an_entity_has_a_user_a_client_id_or_both_or_an_address():
    assert check_entity({"user": "a"}) == QuotaEntity("a")
    assert check_entity({"client-id": None, "user": "a"}) == QuotaEntity("a", "")
    assert check_entity({"ip": "::ffff:10.0.0.7"}) == QuotaEntity(ip="::ffff:10.0.0.7")
    assert list(QuotaEntity("a", "").parts()) == ["client-id", "user"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"host": "a"}, "Unhandled client quota entity type: host"),
        ({"user": "", "host": "a"}, "Empty user not supported"),
        ({"ip": "a.example"}, "a.example is not a valid IP or resolvable host."),
        ({"ip": None, "user": "a"},
         "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
    ],
)  # fmt: skip
def test_invalid_entities(parts: dict[str, str | None], message: str):
    with pytest.raises(KafkaError, match="^INVALID_REQUEST: " + message.replace(".", r"\.")):
        check_entity(parts)


def test_an_address_has_one_form():
    assert {normal_address(text) for text in ("::1", "[0:0:0:0:0:0:0:1]")} == {"::1"}
    assert normal_address("::ffff:10.0.0.7") == "10.0.0.7"
    assert normal_address("localhost") is None


def test_quotas_are_set_and_removed():
    user = QuotaEntity("a")
    quotas = altered_quotas({}, user, [("producer_byte_rate", 5.0), ("request_percentage", 0.5)])
    assert quotas == {"producer_byte_rate": 5.0, "request_percentage": 0.5}
    assert altered_quotas(quotas, user, [("producer_byte_rate", None), ("nosuch", None)]) == {"request_percentage": 0.5}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nosuch", 1.0, "Invalid configuration key nosuch"),
        ("connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        ("producer_byte_rate", float("nan"), "Quota producer_byte_rate must be a finite number"),
        ("producer_byte_rate", -1.5, "Quota producer_byte_rate must be greater than 0"),
        ("consumer_byte_rate", 1.5, "consumer_byte_rate cannot be a fractional value."),
        ("consumer_byte_rate", 2.0**63, "Proposed value for consumer_byte_rate is too large for a LONG."),
    ],
)
def test_invalid_quotas(name: str, value: float, message: str):
    with pytest.raises(KafkaError) as error:
        altered_quotas(
            {}, QuotaEntity("a"), [("producer_byte_rate", 1.0)] * (name != "producer_byte_rate") + [(name, value)]
        )
    assert error.value.message == message


def test_a_quota_must_not_be_named_twice():
    with pytest.raises(
        KafkaError, match=r"Ignoring duplicate entity ClientQuotaEntity\(entries=\{client-id=null, user=a"
    ):
        altered_quotas({}, QuotaEntity("a", ""), [("producer_byte_rate", 1.0)] * 2)
