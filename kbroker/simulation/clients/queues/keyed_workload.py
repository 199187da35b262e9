"""A topic with idempotency keys, most of which are sent several times."""

from collections.abc import Sequence

from kbroker.simulation.clients.queues.queue_client import QueueClient, tags
from kbroker.simulation.clients.queues.queue_rules import KeyedRecords, SeenRecord
from kbroker.simulation.clients.workloads.records import ValueSource
from protocol.records.batch import NewRecord

KEYED = "keyed"
# A key is chosen out of the newest ones, so that each is sent several times.
NEW_KEY, RECENT_KEYS = 0.3, 5
# Longer than any run, with clocks that are wrong by seconds.
WINDOW_MS = 30 * 86_400_000


class KeyedWorkload:
    """`values`: where the values of its records come from."""

    def __init__(self, values: ValueSource) -> None:
        self._values = values
        self._keys = 0
        self._records = KeyedRecords()

    async def produce(self, client: QueueClient) -> None:
        """Send one batch, perhaps with keys that were sent before. Raises OSError."""
        random, now_ms = client.random, client.now_ms()
        values = self._values.allocate(random.choice((1, 1, 1, 4)))
        records: list[NewRecord] = []
        for value in values:
            self._keys += random.random() < NEW_KEY
            key = max(0, self._keys - random.randrange(RECENT_KEYS))
            self._records.send(value, key)
            records.append((now_ms, None, b"%d" % value, (*tags(value), (b"IDEMPOTENCY_KEY", b"%d" % key))))
        offset = await client.produce(KEYED, records)
        if offset is not None:
            self._records.acknowledge(values, offset)

    async def check_at_the_end(self, client: QueueClient) -> Sequence[SeenRecord]:
        """Return the log. Raises BrokenQueue."""
        log: list[SeenRecord] = []
        await client.read_to_end(KEYED, 0, log)
        self._records.check(log)
        return log
