"""Which quota a client has, who shares it, and when it has to wait. Times are in milliseconds."""

import pytest

from kbroker.common import KafkaError
from kbroker.quotas.client_quotas import (
    FORGET_AFTER,
    MAX_WAIT_MS,
    ClientQuotaManager,
    MutationQuota,
    QuotaWindows,
    TokenBucket,
)
from kbroker.quotas.entities import QuotaEntity, Quotas

RATE = "producer_byte_rate"


def manager(*quotas: tuple[QuotaEntity, float], quota: str = RATE) -> ClientQuotaManager:
    return ClientQuotaManager({entity: {quota: value} for entity, value in quotas}, QuotaWindows())


def rate_of(quotas: ClientQuotaManager, user: str, client_id: str | None) -> float | None:
    buckets = quotas.buckets_of(user, client_id, 0)
    return None if buckets is None or buckets.producer is None else buckets.producer.rate


# The eight levels, the most specific first.
LEVELS = [
    QuotaEntity("a", "c"), QuotaEntity("a", ""), QuotaEntity("a"), QuotaEntity("", "c"), QuotaEntity("", ""),
    QuotaEntity(""), QuotaEntity(None, "c"), QuotaEntity(None, ""),
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_quota_applies(first: int):
    quotas = manager(*((entity, number) for number, entity in reversed(list(enumerate(LEVELS, 1))) if number > first))
    assert rate_of(quotas, "a", "c") == first + 1


def test_a_quota_of_another_user_or_client_id_does_not_apply():
    quotas = manager((QuotaEntity("a"), 1), (QuotaEntity(None, "c"), 2), (QuotaEntity("b", "d"), 3))
    assert [rate_of(quotas, "b", client_id) for client_id in ("e", None, "c", "d")] == [None, None, 2, 3]
    assert quotas.buckets_of("b", "e", 0) is None


def test_each_kind_of_quota_has_its_own_level():
    both: dict[QuotaEntity, Quotas] = {QuotaEntity("a", "c"): {"request_percentage": 5}, QuotaEntity(""): {RATE: 7}}
    buckets = ClientQuotaManager(both, QuotaWindows()).buckets_of("a", "c", 0)
    assert buckets is not None
    assert buckets.producer is not None
    assert buckets.request is not None
    # Of the event loop's time, in seconds.
    assert (buckets.producer.rate, buckets.request.rate, buckets.consumer) == (7, 0.05, None)


def test_clients_of_a_user_share_its_quota_and_others_have_one_each():
    quotas = manager((QuotaEntity("a"), 1), (QuotaEntity("b", ""), 1), (QuotaEntity(""), 1))

    def is_shared(user: str, other: str = "") -> bool:
        one, two = quotas.buckets_of(user, "c", 0), quotas.buckets_of(other or user, "d", 0)
        return one is not None and two is not None and one.producer is two.producer

    assert is_shared("a")
    assert not is_shared("b")
    # Every user without a quota has its own.
    assert is_shared("e")
    assert not is_shared("e", "f")


def test_a_debt_stays_when_the_quota_changes():
    rates: dict[QuotaEntity, Quotas] = {QuotaEntity("a"): {RATE: 10}}
    quotas = ClientQuotaManager(rates, QuotaWindows())

    def bucket() -> TokenBucket:
        buckets = quotas.buckets_of("a", "c", 0)
        assert buckets is not None
        assert buckets.producer is not None
        return buckets.producer

    # 100 are allowed at once.
    bucket().take(150, 0)
    assert bucket().wait_ms(0) == 5000
    rates[QuotaEntity("a")] = {RATE: 50}
    quotas.update()
    assert bucket().wait_ms(0) == 1000
    del rates[QuotaEntity("a")]
    quotas.update()
    assert not quotas.has_client_quotas
    assert quotas.buckets_of("a", "c", 0) is None


def test_clients_that_choose_new_ids_are_forgotten():
    quotas = manager((QuotaEntity("", ""), 10))
    indebted = quotas.buckets_of("a", "debt", 0)
    assert indebted is not None
    assert indebted.producer is not None
    indebted.producer.take(1000, 0)
    for number in range(3 * FORGET_AFTER):
        quotas.buckets_of("a", str(number), 0)
    assert len(quotas._buckets) <= FORGET_AFTER + 1
    assert quotas.buckets_of("a", "debt", 0) == indebted


def test_new_addresses_do_not_part_the_clients_of_a_user():
    entities: dict[QuotaEntity, Quotas] = {
        QuotaEntity("a"): {RATE: 1}, QuotaEntity(ip=""): {"connection_creation_rate": 1}
    }  # fmt: skip
    quotas = ClientQuotaManager(entities, QuotaWindows())
    quotas.buckets_of("a", "c", 0)
    # Enough to forget the full buckets, among them that of the user.
    for number in range(FORGET_AFTER + 1):
        quotas.connection_delay_ms(f"10.0.{number >> 8}.{number & 255}", 0)
    one, other = quotas.buckets_of("a", "c", 0), quotas.buckets_of("a", "d", 0)
    assert one is not None
    assert other is not None
    assert one.producer is other.producer


def test_a_bucket():
    bucket = TokenBucket(rate=1000, burst=10_000)
    bucket.take(10_000, 5000)
    assert (bucket.available(5000), bucket.wait_ms(5000)) == (0, 0)
    bucket.take(2500, 5000)
    assert [bucket.wait_ms(now_ms) for now_ms in (5000, 6000, 7500)] == [2500, 1500, 0]
    assert (bucket.available(8500), bucket.is_full(8500), bucket.is_full(60_000)) == (1000, False, True)
    bucket.take(1e20, 60_000)
    assert bucket.wait_ms(60_000) == MAX_WAIT_MS


def test_changes_of_partitions_are_refused_or_delayed():
    bucket = TokenBucket(rate=1, burst=11)
    strict = MutationQuota(bucket, True, 0)
    # The last one that is allowed may exceed the quota.
    strict.charge(8)
    strict.charge(8)
    assert strict.throttle_ms == 0
    with pytest.raises(KafkaError, match="THROTTLING_QUOTA_EXCEEDED"):
        strict.charge(1)
    assert strict.throttle_ms == 5000
    delayed = MutationQuota(bucket, False, 1000)
    delayed.charge(2)
    assert delayed.throttle_ms == 6000


def test_connections_of_an_address():
    rates = (QuotaEntity(ip="10.0.0.7"), 1), (QuotaEntity(ip=""), 2)
    quotas = manager(*rates, quota="connection_creation_rate")
    assert not quotas.has_client_quotas
    assert [quotas.connection_delay_ms("::ffff:10.0.0.7", 0) for _ in range(11)] == [0] * 10 + [1000]
    # Refused ones do not count.
    assert [quotas.connection_delay_ms("10.0.0.7", now_ms) for now_ms in (500, 999, 1000, 1001)] == [501, 2, 0, 1000]
    # Each other address has its own.
    assert [quotas.connection_delay_ms(f"10.0.0.{host}", 0) for host in (8, 9) for _ in range(21)].count(0) == 40
    assert manager().connection_delay_ms("10.0.0.7", 0) == 0
