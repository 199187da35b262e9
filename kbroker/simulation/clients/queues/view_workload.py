"""A view of another topic, which is read during the faults and compared with its source at the end."""

from collections.abc import Sequence

from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.queues.queue_client import SELECTED, QueueClient, is_selected
from kbroker.simulation.clients.queues.queue_rules import BrokenQueue, SeenRecord


class ViewWorkload:
    def __init__(self, source: str) -> None:
        self._source = source
        self._name = f"{source}.{SELECTED.decode()}"
        self._seen: dict[int, SeenRecord] = {}
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
            self._remember(log)
            self._fetched.append((start, position, {record.offset for record in log}))
            if data is None or position >= data.high_watermark:
                await client.cluster.backoff()
                position = client.random.randint(0, position)

    def _remember(self, log: Sequence[SeenRecord]) -> None:
        for record in log:
            if self._seen.setdefault(record.offset, record) != record:
                raise BrokenQueue(f"{self._name}: {record} was {self._seen[record.offset]}")

    async def check_at_the_end(self, client: QueueClient, source: Sequence[SeenRecord]) -> None:
        """Compare the view with the log of its source, which has ended. Raises BrokenQueue."""
        log: list[SeenRecord] = []
        await client.read_to_end(self._name, 0, log)
        self._remember(log)
        for seen in (log, list(self._seen.values())):
            check_view(self._name, seen, source)
        for start, end, offsets in self._fetched:
            missing = [offset for offset in self._seen if start <= offset < end and offset not in offsets]
            if missing:
                raise BrokenQueue(f"{self._name}: a fetch moved from {start} to {end} without {missing[:5]}")


def check_view(name: str, seen: Sequence[SeenRecord], source: Sequence[SeenRecord]) -> None:
    """Check that a view has the selected records of its source, and no others. Raises BrokenQueue."""
    expected = {record for record in source if is_selected(record.value)}
    wrong, missing = set(seen) - expected, expected - set(seen)
    if wrong or missing or len(seen) != len(expected):
        raise BrokenQueue(f"{name}: wrong are {sorted(wrong)[:5]}, and missing {sorted(missing)[:5]}")
