"""The newest dead letters of a topic, and redrives, which run in a thread of their own until they end or are cancelled.

A redrive is tried first: it counts what it would send. It commits its progress with the records, so one that was
cancelled, or ended with the console, continues where it stopped.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.client import CLIENT_ERRORS, client_error_text, partition_leaders
from kbroker.cli.common.deletion import record_bounds
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.values import INT32
from kbroker.cli.dlq.app import require_dead_letter_topic
from kbroker.cli.dlq.redrive import DeadLetter, LetterFilter, Redrive, dead_letter
from kbroker.client.admin import READ_COMMITTED
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.requests import MAX_VERSIONS
from kbroker.client.transactions import LAST_VERSIONS
from kbroker.config.queue_configs import VIEW_OF
from kbroker.console.kafka import connect
from kbroker.console.pages.queues import short_text
from kbroker.console.rendering import CONFIRMED, console, integer, page, read_form, see_other
from kbroker.console.settings import ConsoleSettings

# A page examines so many of the last records of a topic, and shows the newest of those that are selected.
EXAMINED, SHOWN = 1000, 100
# A form waits this long for the end of a redrive; after that the page follows it.
WAIT_S = 0.5
# The fields of a selection: the topic where records failed, the group that failed, the class of the error.
SELECTION = ("source", "group", "error")


class Letters(NamedTuple):
    """Records that are selected, newest first, of the last `examined` records of a topic, which has `total`."""

    found: Sequence[tuple[ConsumedRecord, DeadLetter]]
    examined: int
    total: int


def read_letters(cluster: ClusterClient, topic: str, selection: LetterFilter) -> Letters:
    """Raises CliError."""
    bounds = record_bounds(cluster, topic)
    each = max(EXAMINED // max(len(bounds), 1), 1)
    begins = {tp: max(begin, end - each) for tp, (begin, end) in bounds.items() if end > begin}
    records: list[ConsumedRecord] = []
    consumer = PartitionConsumer(cluster, begins, isolation_level=READ_COMMITTED)
    while len(records) < EXAMINED and any(consumer.positions[tp] < bounds[tp][1] for tp in begins):
        polled = consumer.poll(EXAMINED)
        if not polled:
            # What an open transaction holds back.
            break
        records += polled
    found = [record for record in records if selection.selects(record.headers, record.timestamp)]
    found.sort(key=lambda record: -record.timestamp)
    letters = [(record, dead_letter(record.headers)) for record in found[:SHOWN]]
    return Letters(letters, len(records), sum(end - begin for begin, end in bounds.values()))


def selection_of(fields: Mapping[str, str]) -> LetterFilter:
    source, group, error = (fields.get(name, "").strip() or None for name in SELECTION)
    return LetterFilter(source, group, error)


async def dead_letters(request: Request) -> Response:
    topic, state = request.query_params.get("topic", ""), console(request)
    letters = await state.kafka.cached(read_letters, topic, selection_of(request.query_params))
    return page(
        request, "dead_letters.html", topic=topic, letters=letters, short_text=short_text,
        fields={name: request.query_params.get(name, "") for name in SELECTION},
        job=state.redrives.get(topic),
    )  # fmt: skip


# Redrives.


class RedriveCancelled(Exception):
    """The user has cancelled a redrive."""


class RedriveJob:
    """A redrive in a thread. `total`: the records of the topic; `done`: those that were read.

    `counts`: what became of the records, when it has ended; `error`: why it has not. `fields`: those of its form.
    """

    def __init__(self, settings: ConsoleSettings, fields: Mapping[str, str], *, is_trial: bool) -> None:
        self.fields, self.is_trial = fields, is_trial
        self.total = self.done = 0
        self.counts: Counter[str] = Counter()
        self.error: str | None = None
        self.is_cancelled = False
        self._settings = settings
        self._thread = Thread(target=self._run, name="redrive", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        topic, target = self.fields["topic"], self.fields.get("to")
        try:
            with connect(self._settings, {**MAX_VERSIONS, **LAST_VERSIONS}) as cluster:
                configs = require_dead_letter_topic(cluster, topic)
                if target is not None:
                    partition_leaders(cluster, [target])  # raises for a missing one
                self.total = sum(end - begin for begin, end in record_bounds(cluster, topic).values())
                sources = {name: source for name, values in configs.items() if (source := values.get(VIEW_OF))}
                work = Redrive(cluster, topic, selection_of(self.fields), target, sources=sources)
                rate = integer(self.fields, "rate", 0, INT32) or None
                self.counts = work.run(
                    rate=rate, again="again" in self.fields, dry_run=self.is_trial, progress=self._advance
                )
        except RedriveCancelled:
            self.error = "It was cancelled. The next redrive with the same selection continues here."
        except CliError as error:
            self.error = str(error)
        except CLIENT_ERRORS as error:
            self.error = client_error_text(error)

    def _advance(self, records: int) -> None:
        self.done += records
        if self.is_cancelled:
            raise RedriveCancelled


async def redrive(request: Request) -> Response:
    """Try a redrive, or begin it."""
    form, state = await read_form(request), console(request)
    topic = form.setdefault("topic", "")
    if form.get("to") == topic:
        raise CliError(f"choose another topic than {topic} itself: a redriven record also stays there")
    running = state.redrives.get(topic)
    if running is not None and running.is_running:
        raise CliError(f"a redrive of {topic} is running: wait for its end, or cancel it")
    job = RedriveJob(state.settings, form, is_trial=CONFIRMED not in form)
    state.redrives[topic] = job
    await asyncio.to_thread(job.join, WAIT_S)
    state.kafka.forget()
    return see_other(f"/queues/dead-letters?{urlencode({'topic': topic})}")


async def cancel(request: Request) -> Response:
    topic = (await read_form(request)).get("topic", "")
    if job := console(request).redrives.get(topic):
        job.is_cancelled = True
        await asyncio.to_thread(job.join, WAIT_S)
    return see_other(f"/queues/dead-letters?{urlencode({'topic': topic})}")


routes = [
    Route("/queues/dead-letters", dead_letters),
    Route("/queues/dead-letters/redrive", redrive, methods=["POST"]),
    Route("/queues/dead-letters/cancel", cancel, methods=["POST"]),
]
