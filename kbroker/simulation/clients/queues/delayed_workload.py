"""A topic with delayed delivery, which is written and read during the faults."""

from collections.abc import Sequence

from kbroker.simulation.clients.queues.queue_client import QueueClient, tags
from kbroker.simulation.clients.queues.queue_rules import DelayedRecords, SeenRecord
from kbroker.simulation.clients.workloads.records import ValueSource
from protocol.records.batch import NewRecord
from protocol.records.record import Header

DELAYED = "delayed"
DELAYS_MS = (1, 20, 500, 3_000)
# The numbers of records in a batch. Several batches of one record, or a batch of many, are due in another order.
BATCH_RECORDS = (1, 1, 3, 10, 40)
# Some batches are stamped later than they arrive.
AHEAD_MS = (0, 0, 2_000)


class DelayedWorkload:
    """`values`: where the values of its records come from."""

    def __init__(self, values: ValueSource) -> None:
        self._values = values
        self._records = DelayedRecords()

    async def produce(self, client: QueueClient) -> None:
        """Send one batch with delayed and immediate records, without retries. Raises OSError."""
        values, now_ms = self._values.allocate(client.random.choice(BATCH_RECORDS)), client.now_ms()
        timestamp = now_ms + client.random.choice(AHEAD_MS)
        due_ms: dict[int, int | None] = {}
        records: list[NewRecord] = []
        for value in values:
            headers, due_ms[value] = _draw_delay(client, now_ms)
            records.append((timestamp, None, b"%d" % value, (*tags(value), *headers)))
        self._records.send(due_ms)
        if await client.produce(DELAYED, records) is not None:
            self._records.acknowledge(values)

    async def read(self, client: QueueClient) -> None:
        """Read the topic again and again from its start, until the workload is asked to stop. Raises BrokenQueue."""
        while not client.stopped:
            await client.read_for_a_while(DELAYED, 0, self._records.read)
            await client.cluster.backoff()

    async def check_at_the_end(self, client: QueueClient) -> Sequence[SeenRecord]:
        """Wait until all that was acknowledged is delivered. Returns the log. Raises BrokenQueue."""
        log: list[SeenRecord] = []
        position = 0
        while True:
            position = await client.read_to_end(DELAYED, position, log)
            if self._records.is_complete(log):
                break
            await client.cluster.backoff()
        self._records.check(log)
        return log


def _draw_delay(client: QueueClient, now_ms: int) -> tuple[tuple[Header, ...], int | None]:
    """Return the headers of a record, and when it is due: 0 if that depends on the broker's clock."""
    kind, delay_ms = client.random.randrange(3), client.random.choice(DELAYS_MS)
    if kind == 0:
        return (), None
    if kind == 1:
        return ((b"TIMER_DELAY_MS", b"%d" % delay_ms),), 0
    # Several records are due at the same time.
    due_ms = now_ms // 500 * 500 + delay_ms
    return ((b"TIMER_DELIVER_MS", b"%d" % due_ms),), due_ms
