"""A topic with delayed delivery and a short retention. Some records are due after the run, so they stay pending.

Meanwhile an operator deletes records, and cancels and delivers pending ones.
"""

import asyncio
from contextlib import suppress
from random import Random

from kbroker.api.k10011_delayed_records import CANCEL, DELIVER, LIST, MAX_RECORDS
from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.group_offsets import EARLIEST, LATEST, RefusedError, list_offset
from kbroker.simulation.clients.records import ValueSource, value_of
from kbroker.simulation.clients.workloads.queue_client import QueueClient
from kbroker.simulation.clients.workloads.queue_rules import PendingDelayedRecord, RetainedDelayedRecords, SeenRecord
from protocol.messages.k10011_delayed_records import DelayedRecordsRequest, DelayedRecordsResponse
from protocol.records.batch import NewRecord

RETAINED = "retained"
DELAYS_MS = (20, 500, 3_000)
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
        self._records = RetainedDelayedRecords()

    async def produce(self, client: QueueClient) -> None:
        """Send one batch of records that are immediate, due soon, or due after the run. Raises OSError."""
        random, now_ms = client.random, client.now_ms()
        values = self._values.allocate(random.choice((1, 3, 10)))
        due_ms: dict[int, int | None] = {}
        records: list[NewRecord] = []
        for value in values:
            due = random.choice((None, now_ms + random.choice(DELAYS_MS), now_ms + FAR_MS))
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
        admin, random = _admin(client), client.random
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
        await _disable_retention(client)
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


async def _disable_retention(client: QueueClient) -> None:
    """A list has several pages, between which retention would move records."""
    while True:
        with suppress(RefusedError, TimeoutError):
            await _admin(client).alter_configs(RETAINED, {"retention.ms": "-1"})
            return


def _admin(client: QueueClient) -> Admin:
    # The checker does not check these operations.
    return Admin(client.cluster, History(lambda: 0), RETAINED, timeout_s=5.0)


async def _send(client: QueueClient, request: DelayedRecordsRequest) -> DelayedRecordsResponse | None:
    """Return the response of the leader, None if it is an error. Raises OSError."""
    connection = await client.cluster.leader((RETAINED, 0))
    response = await connection.request(request, DelayedRecordsResponse, version=0)
    if response.error_code:
        client.cluster.forget_leader((RETAINED, 0))
        return None
    return response
