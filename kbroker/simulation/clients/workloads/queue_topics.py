"""Topics with queue features that Kafka lacks, which are written and read during the faults.

The clients keep no history for the checker: what they see is checked with rules of their own.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random

from kbroker.api.k10011_delayed_records import CANCEL, DELIVER, LIST, MAX_RECORDS
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import RefusedError
from kbroker.simulation.clients.group_offsets import EARLIEST, LATEST, list_offset
from kbroker.simulation.clients.records import ValueSource, value_of
from kbroker.simulation.clients.workloads.closing_workload import CLOSING, PARTITIONS, ClosingWorkload
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.queue_client import SELECTED, QueueClient, is_selected, tags
from kbroker.simulation.clients.workloads.queue_rules import (
    BrokenQueue,
    DelayedRecords,
    KeyedRecords,
    PendingDelayedRecord,
    SeenRecord,
    SeenRecords,
)
from protocol.messages.k10011_delayed_records import DelayedRecordsRequest, DelayedRecordsResponse
from protocol.records.batch import NewRecord
from protocol.records.record import Header

# Not values of the other clients.
FIRST_VALUE = 2_000_000_000
PRODUCERS = 2


class QueueTopics:
    """`configs`: those of the topics, with which no fault of the run may lose acknowledged records."""

    def __init__(self, context: WorkloadContext, random: Random, configs: Mapping[str, str], replicas: int) -> None:
        self.context = context
        self._random = random
        self._configs = configs
        self._replicas = replicas
        values = ValueSource(FIRST_VALUE)
        self._delayed, self._keyed = DelayedWorkload(values), KeyedWorkload(values)
        self._retained, self._closing = RetainedWorkload(values), ClosingWorkload(values)
        self._views = {DELAYED: ViewWorkload(DELAYED), KEYED: ViewWorkload(KEYED)}
        self._clients: list[QueueClient] = []

    async def create(self, admin: Admin) -> None:
        """Create the topics."""
        own: dict[str, dict[str, str]] = {
            DELAYED: {"kbroker.delay.enable": "true"},
            KEYED: {"kbroker.dedup.window.ms": str(WINDOW_MS)},
            RETAINED: draw_retention_configs(self._random),
            CLOSING: {},
        }
        for topic, configs in own.items():
            partitions = PARTITIONS if topic == CLOSING else 1
            await admin.create_topic(topic, partitions, {**self._configs, **configs}, replication_factor=self._replicas)
        for view in self._views.values():
            await view.create(admin)

    async def run(self) -> None:
        """Write and read until the workload is asked to stop. Raises BrokenQueue."""
        retained, closing = self._retained, self._closing
        try:
            await asyncio.gather(
                self._delayed.read(self._client()),
                *(view.read(self._client()) for view in self._views.values()),
                *(self._produce(self._client()) for _ in range(PRODUCERS)),
                retained.read(self._client()),
                retained.operate(self._client()),
                closing.read(self._client()),
                closing.operate(self._client()),
                *(closing.produce(self._client()) for _ in range(PRODUCERS)),
                closing.produce_in_transactions(self._client()),
            )
        finally:
            self._close()

    async def _produce(self, client: QueueClient) -> None:
        while not client.stopped:
            (topic,) = client.random.choices((self._delayed, self._keyed, self._retained), (4, 3, 3))
            with suppress(OSError):
                await topic.produce(client)
            await asyncio.sleep(client.random.random() * 0.1)

    async def check_at_the_end(self) -> None:
        """Wait, after all faults, until all that was acknowledged is there, and check the logs. Raises BrokenQueue."""
        client = self._client()
        try:
            for name, topic in ((DELAYED, self._delayed), (KEYED, self._keyed)):
                log = await topic.check_at_the_end(client)
                await self._views[name].check_at_the_end(client, log)
            await self._retained.check_at_the_end(client)
            await self._closing.check_at_the_end(client)
        finally:
            self._close()

    def _client(self) -> QueueClient:
        client = QueueClient(self.context, self._random)
        self._clients.append(client)
        return client

    def _close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


# A topic with delayed delivery, which is written and read during the faults.

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
        offset = await client.produce(DELAYED, records)
        if offset is not None:
            self._records.acknowledge(values, offset)

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
            self._records.read(log)
            if self._records.is_complete():
                break
            await client.cluster.backoff()
        self._records.check_log(log)
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


# A topic with idempotency keys, most of which are sent several times.

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


# A view of another topic, which is read during the faults and compared with its source at the end.


class ViewWorkload:
    def __init__(self, source: str) -> None:
        self._source = source
        self._name = f"{source}.{SELECTED.decode()}"
        self._seen = SeenRecords()
        # (fetch offset, next offset, offsets of the records) of each fetch.
        self._fetched: list[tuple[int, int, set[int]]] = []

    async def create(self, admin: Admin) -> None:
        configs = {"kbroker.view.of": self._source, "kbroker.view.filter": SELECTED.decode()}
        await admin.create_topic(self._name, -1, configs, replication_factor=-1)

    async def read(self, client: QueueClient) -> None:
        """Read the view again and again, from random offsets on. Raises BrokenQueue."""
        position = 0
        while not client.stopped:
            log: list[SeenRecord] = []
            start = position
            data, position = await client.fetch(self._name, start, log)
            self._seen.add(log)
            self._fetched.append((start, position, {record.offset for record in log}))
            if data is None or position >= data.high_watermark:
                await client.cluster.backoff()
                position = client.random.randint(0, position)

    async def check_at_the_end(self, client: QueueClient, source: Sequence[SeenRecord]) -> None:
        """Compare the view with the log of its source, which has ended. Raises BrokenQueue."""
        log: list[SeenRecord] = []
        await client.read_to_end(self._name, 0, log)
        self._seen.add(log)
        for seen in (log, list(self._seen.by_offset.values())):
            check_view(self._name, seen, source)
        for start, end, offsets in self._fetched:
            missing = [offset for offset in self._seen.by_offset if start <= offset < end and offset not in offsets]
            if missing:
                raise BrokenQueue(f"{self._name}: a fetch moved from {start} to {end} without {missing[:5]}")


def check_view(name: str, seen: Sequence[SeenRecord], source: Sequence[SeenRecord]) -> None:
    """Check that a view has the selected records of its source, and no others. Raises BrokenQueue."""
    expected = {record for record in source if is_selected(record.value)}
    wrong, missing = set(seen) - expected, expected - set(seen)
    if wrong or missing or len(seen) != len(expected):
        raise BrokenQueue(f"{name}: wrong are {sorted(wrong)[:5]}, and missing {sorted(missing)[:5]}")


# A topic with delayed delivery and a short retention. Some records are due after the run, so they stay pending.
# Meanwhile an operator deletes records, and cancels and delivers pending ones.

RETAINED = "retained"
RETAINED_DELAYS_MS = (20, 500, 3_000)
# Longer than any run, with clocks that are wrong by days.
FAR_MS = 20 * 86_400_000


def draw_retention_configs(random: Random) -> dict[str, str]:
    """Draw configs with which retention soon moves pending records."""
    return {
        "kbroker.delay.enable": "true",
        "retention.ms": str(random.choice((100, 1_000, 5_000))),
        "segment.ms": str(random.choice((500, 2_000))),
    }


class RetainedWorkload:
    """`values`: where the values of its records come from."""

    def __init__(self, values: ValueSource) -> None:
        self._values = values
        self._records = DelayedRecords()

    async def produce(self, client: QueueClient) -> None:
        """Send one batch of records that are immediate, due soon, or due after the run. Raises OSError."""
        random, now_ms = client.random, client.now_ms()
        values = self._values.allocate(random.choice((1, 3, 10)))
        due_ms: dict[int, int | None] = {}
        records: list[NewRecord] = []
        for value in values:
            due = random.choice((None, now_ms + random.choice(RETAINED_DELAYS_MS), now_ms + FAR_MS))
            due_ms[value] = due
            headers = () if due is None else ((b"TIMER_DELIVER_MS", b"%d" % due),)
            records.append((now_ms, None, b"%d" % value, headers))
        self._records.send(due_ms)
        offset = await client.produce(RETAINED, records)
        if offset is not None:
            self._records.acknowledge(values, offset)

    async def read(self, client: QueueClient) -> None:
        """Read the topic from its start on, until the workload is asked to stop. Raises BrokenQueue."""
        while not client.stopped:
            with suppress(OSError):
                start, _ = await list_offset(client.cluster, (RETAINED, 0), EARLIEST)
                await client.read_for_a_while(RETAINED, start, self._records.read)
            await client.cluster.backoff()

    # The operator.

    async def operate(self, client: QueueClient) -> None:
        """Delete records, cancel and deliver pending ones, until asked to stop. Raises BrokenQueue."""
        admin, random = client.admin(RETAINED), client.random
        while not client.stopped:
            with suppress(OSError):
                if random.random() < 0.1:
                    await self._delete(client, admin)
                else:
                    await self._change(client)
            await asyncio.sleep(random.random() * random.choice((0.2, 2.0)))

    async def _delete(self, client: QueueClient, admin: Admin) -> None:
        """Delete some of the oldest records. Raises OSError."""
        start, _ = await list_offset(client.cluster, (RETAINED, 0), EARLIEST)
        end, _ = await list_offset(client.cluster, (RETAINED, 0), LATEST)
        offset = client.random.randint(start, (start + end) // 2)
        self._records.delete_below(offset)
        await admin.delete_records((RETAINED, 0), offset)

    async def _change(self, client: QueueClient) -> None:
        """Cancel or deliver a pending record. Raises OSError, BrokenQueue."""
        pending = await self._list(client)
        if not pending:
            return
        record, operation = client.random.choice(pending), client.random.choice((CANCEL, DELIVER))
        self._records.change(record.value)
        request = DelayedRecordsRequest(
            topic_name=RETAINED, operation=operation, offsets=[record.offset], timeout_ms=5_000
        )
        response = await _send(client, request)
        if response is not None and operation == CANCEL and not response.results[0].error_code:
            self._records.cancelled(record.value)

    async def _list(self, client: QueueClient) -> list[PendingDelayedRecord] | None:
        """Return the pending records, None after an error. Raises OSError."""
        pending: list[PendingDelayedRecord] = []
        request = DelayedRecordsRequest(
            topic_name=RETAINED, operation=LIST, max_records=MAX_RECORDS, include_payload=True
        )
        while True:
            response = await _send(client, request)
            if response is None:
                return None
            pending += [
                PendingDelayedRecord(each.offset, value_of(each.value), each.due_ms) for each in response.records
            ]
            if not response.has_more:
                return pending
            request.after_due_ms, request.after_offset = pending[-1].due_ms, pending[-1].offset

    async def check_at_the_end(self, client: QueueClient) -> None:
        """Wait until only records that are due after the run are pending, and check them. Raises BrokenQueue."""
        while True:
            # A list has several pages, between which retention would move records.
            with suppress(RefusedError, TimeoutError):
                await client.admin(RETAINED).alter_configs(RETAINED, {"retention.ms": "-1"})
                break
        last: list[PendingDelayedRecord] | None = None
        while True:
            with suppress(OSError):
                pending, later_ms = await self._list(client), client.now_ms() + FAR_MS // 2
                is_settled = pending is not None and all(record.due_ms > later_ms for record in pending)
                if pending is not None and is_settled and pending == last:
                    log: list[SeenRecord] = []
                    start, _ = await list_offset(client.cluster, (RETAINED, 0), EARLIEST)
                    await client.read_to_end(RETAINED, start, log)
                    self._records.read(log)
                    self._records.check_pending(pending, later_ms)
                    return
                last = pending
            await client.cluster.backoff()


async def _send(client: QueueClient, request: DelayedRecordsRequest) -> DelayedRecordsResponse | None:
    """Return the response of the leader, None if it is an error. Raises OSError."""
    connection = await client.cluster.leader((RETAINED, 0))
    response = await connection.request(request, DelayedRecordsResponse, version=0)
    if response.error_code:
        client.cluster.forget_leader((RETAINED, 0))
        return None
    return response
