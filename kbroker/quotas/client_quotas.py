"""ClientQuotaManager: which quotas a request counts for, and how long its connection has to wait (KIP-13, KIP-219).

A request counts for the most specific entity that has the quota, in Kafka's order (`_levels`). The clients of an entity
share a bucket if the entity names no client id; else each client id has its own. After a pause a bucket has the tokens
of all windows, as Kafka's average of these windows allows. What exceeds it is a debt, which is repaid while the
connections do not serve requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.quotas.entities import (
    CLIENT_QUOTAS,
    CONNECTION_RATE,
    DEFAULT,
    MUTATION_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    Quotas,
    normal_address,
)
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

# Full buckets are forgotten when there are so many, or twice as many as were left: clients choose ids and addresses.
FORGET_AFTER = 1_000
# Of the field throttle_time_ms.
MAX_WAIT_MS = (1 << 31) - 1
# (quota, user, client id); (CONNECTION_RATE, address, None).
BucketKey = tuple[str, str | None, str | None]


class QuotaWindows(NamedTuple):
    """quota.window.* and controller.quota.window.*: how many windows, and their length in seconds."""

    windows: int = 11
    seconds: int = 1
    controller_windows: int = 11
    controller_seconds: int = 1

    @classmethod
    def of(cls, config: BrokerConfig) -> QuotaWindows:
        return cls(
            config.quota_window_num,
            config.quota_window_size_seconds,
            config.controller_quota_window_num,
            config.controller_quota_window_size_seconds,
        )

    def burst_seconds(self, quota: str) -> int:
        """Return for how many seconds the rate is allowed at once: Kafka's averages are over full windows only."""
        if quota == MUTATION_RATE:
            return self.controller_windows * self.controller_seconds
        return max(self.windows - 1, 1) * self.seconds


class TokenBucket:
    """What exceeds it is a debt, which time repays. `rate`: tokens per second. `burst`: how many there are at most.
    Times are monotonic, in milliseconds.
    """

    __slots__ = ("burst", "rate", "tokens", "updated_ms")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        # Full at its first use.
        self.tokens = inf
        self.updated_ms = 0

    def available(self, now_ms: int) -> float:
        """Return how many tokens there are; negative during a debt."""
        self.tokens = min(self.burst, self.tokens + self.rate * (now_ms - self.updated_ms) / 1000)
        self.updated_ms = now_ms
        return self.tokens

    def take(self, tokens: float, now_ms: int) -> None:
        """Take tokens, also those that are not there yet."""
        self.tokens = self.available(now_ms) - tokens

    def wait_ms(self, now_ms: int) -> int:
        """Return after how many milliseconds the debt is repaid; 0 without one."""
        debt = -self.available(now_ms)
        return 0 if debt <= 0 else min(ceil(debt * 1000 / self.rate), MAX_WAIT_MS)

    def is_full(self, now_ms: int) -> bool:
        """Return whether a new bucket would be the same."""
        return self.available(now_ms) >= self.burst


class ClientBuckets(NamedTuple):
    """The buckets of a client, None without this quota. Those of requests have seconds of the event loop's time."""

    producer: TokenBucket | None
    consumer: TokenBucket | None
    request: TokenBucket | None
    mutation: TokenBucket | None


class ClientQuotaManager:
    """`has_client_quotas`: whether any user or client id has quotas. `throttled`: the number of responses and their
    milliseconds, by kind of quota.
    """

    def __init__(self, quotas: Mapping[QuotaEntity, Quotas], windows: QuotaWindows) -> None:
        """`quotas`: those of the cluster, which change."""
        self._quotas = quotas
        self._windows = windows
        self._buckets: dict[BucketKey, TokenBucket] = {}
        self._clients: dict[tuple[str, str], ClientBuckets | None] = {}
        self._addresses: dict[str, float] = {}
        self._forget_at = FORGET_AFTER
        self.has_client_quotas = False
        self.throttled: dict[str, tuple[int, int]] = {}
        self.update()

    @property
    def window_ms(self) -> int:
        return self._windows.seconds * 1000

    def update(self) -> None:
        """Called after the quotas have changed. A debt remains, and is repaid at the new rate."""
        self._clients.clear()
        self._addresses = {
            (entity.ip and normal_address(entity.ip)) or DEFAULT: quotas[CONNECTION_RATE]
            for entity, quotas in self._quotas.items()
            if entity.ip is not None and CONNECTION_RATE in quotas
        }
        self.has_client_quotas = any(entity.ip is None for entity in self._quotas)

    def buckets_of(self, user: str, client_id: str | None, now_ms: int) -> ClientBuckets | None:
        """Return the buckets of a client, None if no quota applies to it."""
        key = (user, client_id or "")
        try:
            return self._clients[key]
        except KeyError:
            pass
        if len(self._clients) >= FORGET_AFTER:
            self._forget_full(now_ms)
        buckets = ClientBuckets(*(self._bucket_of(quota, *key) for quota in CLIENT_QUOTAS))
        found = self._clients[key] = buckets if any(buckets) else None
        return found

    def _bucket_of(self, quota: str, user: str, client_id: str) -> TokenBucket | None:
        for entity in _levels(user, client_id):
            rate = self._quotas.get(entity, {}).get(quota)
            if rate is not None:
                rate = rate / 100 if quota == REQUEST_PERCENTAGE else rate
                has_user, has_client = entity.user is not None, entity.client_id is not None
                return self._bucket((quota, user if has_user else None, client_id if has_client else None), rate)
        return None

    def _bucket(self, key: BucketKey, rate: float) -> TokenBucket:
        burst = rate * self._windows.burst_seconds(key[0])
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(rate, burst)
        bucket.rate, bucket.burst = rate, burst
        return bucket

    def _forget_full(self, now_ms: int) -> None:
        # A client that kept its bucket would share it no longer with the others of its user.
        self._clients.clear()
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_ms)}
        self._forget_at = max(FORGET_AFTER, 2 * len(self._buckets))

    def connection_delay_ms(self, host: str, now_ms: int) -> int:
        """Count a new connection from an address. Returns 0, or after how many milliseconds it must be closed."""
        if not self._addresses:
            return 0
        address = normal_address(host) or host
        rate = self._addresses.get(address, self._addresses.get(DEFAULT))
        if rate is None:
            return 0
        if len(self._buckets) >= self._forget_at:
            self._forget_full(now_ms)
        bucket = self._bucket((CONNECTION_RATE, address, None), rate)
        missing = 1 - bucket.available(now_ms)
        if missing <= 0:
            bucket.take(1, now_ms)
            return 0
        return min(int(missing * 1000 / rate) + 1, self.window_ms)

    def count_throttled(self, quota: str, wait_ms: int) -> None:
        responses, total_ms = self.throttled.get(quota, (0, 0))
        self.throttled[quota] = responses + 1, total_ms + wait_ms


def _levels(user: str, client_id: str) -> Iterator[QuotaEntity]:
    """Yield the entities that a client belongs to, the most specific first."""
    for user_name in (user, DEFAULT):
        for client_name in (client_id, DEFAULT, None):
            yield QuotaEntity(user_name, client_name)
    yield QuotaEntity(None, client_id)
    yield QuotaEntity(None, DEFAULT)


class MutationQuota:
    """Counts the partitions that one request creates and deletes (KIP-599).

    `is_strict`: partitions beyond the quota are refused; else the connection has to wait. `throttle_ms`: how long.
    """

    def __init__(self, bucket: TokenBucket | None, is_strict: bool, now_ms: int) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self._now_ms = now_ms
        self.throttle_ms = 0

    def charge(self, partitions: int) -> None:
        """Count partitions. Raises KafkaError (THROTTLING_QUOTA_EXCEEDED)."""
        bucket, now_ms = self._bucket, self._now_ms
        if bucket is None:
            return
        if self._is_strict and bucket.available(now_ms) < 0:
            self.throttle_ms = bucket.wait_ms(now_ms)
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        bucket.take(partitions, now_ms)
        if not self._is_strict:
            self.throttle_ms = bucket.wait_ms(now_ms)


# Of topics that the broker itself creates.
UNLIMITED = MutationQuota(None, False, 0)
