"""What one request counts for in the quotas of its client (KIP-219).

Produce counts for its size when it arrives, Fetch and ShareFetch for the size of the response, and every request for
the time that the event loop spends on it. The throttle time is known only when the response is complete: it is written
over the 0 in the encoded response.
"""

from collections.abc import Sequence
from struct import Struct

from kbroker.common import Buffer
from kbroker.quotas.client_quotas import ClientBuckets, ClientQuotaManager
from kbroker.quotas.entities import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, REQUEST_PERCENTAGE
from protocol.apis import ApiKey
from protocol.fast.fetch import Records

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
# A response to a Fetch may have the bytes of this time, even if the quota allows fewer at the moment.
MIN_RESPONSE_MS = 100
_FETCHES = (ApiKey.FETCH, ApiKey.SHARE_FETCH)
# As in api/context.py, which is above.
Body = bytes | Sequence[Buffer | Records]

_INT32 = Struct(">i")


class RequestCharge:
    """`fetch_bytes`: the most bytes that a Fetch may return now, None without a limit. 0: the quota is exceeded, and
    the response must be empty.

    `spent_ns`: the time that was spent on the request, None while it is being handled for the first time.
    `throttle_ms`: how long the connection has to wait because of the request's size.
    """

    __slots__ = ("_api_key", "_client", "_quotas", "_started_ns", "fetch_bytes", "spent_ns", "throttle_ms")

    def __init__(self, quotas: ClientQuotaManager, client: tuple[str, str | None], api_key: int, now_ns: int) -> None:
        """`client`: the user and the client id."""
        self.fetch_bytes: int | None = None
        self.spent_ns: int | None = None
        self.throttle_ms = 0
        self._quotas = quotas
        self._client = client
        self._api_key = api_key
        self._started_ns = now_ns

    def begin(self, buckets: ClientBuckets, size: int) -> None:
        """Count a request of `size` bytes that has arrived."""
        now_ms = self._started_ns // NS_PER_MS
        if self._api_key == ApiKey.PRODUCE and buckets.producer is not None:
            buckets.producer.take(size, now_ms)
            self._throttle(PRODUCER_RATE, buckets.producer.wait_ms(now_ms))
        elif self._api_key == ApiKey.FETCH and buckets.consumer is not None:
            bucket = buckets.consumer
            available = bucket.available(now_ms)
            # Smaller responses would cost more requests.
            enough = max(available, bucket.rate * MIN_RESPONSE_MS / 1000, 1)
            self.fetch_bytes = 0 if available < 0 else int(min(enough, 1 << 31))

    def end_handling(self, now_ns: int) -> None:
        """Called when the handler has returned: what follows is a wait."""
        if self.spent_ns is None:
            self.spent_ns = now_ns - self._started_ns

    def settle(self, response_bytes: int, response_ms: int, now_ns: int) -> int:
        """Count the response. Returns how many milliseconds the connection has to wait.

        `response_ms`: its throttle time so far, that of a controller which has refused changes.
        """
        now_ms = now_ns // NS_PER_MS
        if response_ms:
            self._throttle(MUTATION_RATE, response_ms)
        # Another request may have changed the quotas meanwhile.
        buckets = self._quotas.buckets_of(*self._client, now_ms)
        if buckets is None:
            return self.throttle_ms
        if self._api_key in _FETCHES and buckets.consumer is not None:
            buckets.consumer.take(response_bytes, now_ms)
            wait_ms = buckets.consumer.wait_ms(now_ms)
            # Consumers recognize by the time why a response is empty.
            self._throttle(CONSUMER_RATE, max(wait_ms, 1) if self.fetch_bytes == 0 else wait_ms)
        if buckets.request is not None:
            self.end_handling(now_ns)
            buckets.request.take((self.spent_ns or 0) / NS_PER_S, now_ms)
            self._throttle(REQUEST_PERCENTAGE, min(buckets.request.wait_ms(now_ms), self._quotas.window_ms))
        return self.throttle_ms

    def _throttle(self, quota: str, wait_ms: int) -> None:
        if wait_ms:
            self._quotas.count_throttled(quota, wait_ms)
            self.throttle_ms = max(self.throttle_ms, wait_ms)


def charge_request(
    quotas: ClientQuotaManager, client: tuple[str, str | None], api_key: int, size: int, now_ns: int
) -> RequestCharge | None:
    """Return the charge of a request that has arrived, None if no quota applies to its client."""
    buckets = quotas.buckets_of(*client, now_ns // NS_PER_MS)
    if buckets is None:
        return None
    charge = RequestCharge(quotas, client, api_key, now_ns)
    charge.begin(buckets, size)
    return charge


def read_throttle_ms(body: Body, offset: int | None) -> int:
    """Return the throttle time of a body, 0 if it has none at `offset` (ApiHandler.throttle_offset)."""
    place = _place(body, offset)
    if place is None or (offset is not None and offset < 0):
        return 0
    part, start = place
    wait_ms: int = _INT32.unpack_from(part, start)[0]
    return wait_ms


def with_throttle_ms(body: Body, offset: int | None, throttle_ms: int) -> Body:
    """Return a body with a throttle time, unless it has none at `offset`. Parts may be shared: none is changed."""
    place = _place(body, offset)
    if place is None:
        return body
    part, start = place
    changed = bytes(part[:start]) + _INT32.pack(throttle_ms) + bytes(part[start + 4 :])
    if isinstance(body, bytes):
        return changed
    return [changed, *body[1:]] if start == offset else [*body[:-1], changed]


def _place(body: Body, offset: int | None) -> tuple[Buffer, int] | None:
    """Return the buffer that has the throttle time, and where. None if there is none."""
    if offset is None:
        return None
    part = body if isinstance(body, bytes) else body[0 if offset >= 0 else -1]
    if not isinstance(part, Buffer):
        return None
    start = offset if offset >= 0 else len(part) + offset
    if start < 0 or start + 4 > len(part) or (offset < 0 and any(part[start:])):
        # Tagged fields follow in the response of Produce.
        return None
    return part, start
