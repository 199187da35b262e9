"""The newest dead letters of a topic, and the forms that redrive them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.deletion import record_bounds
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.values import INT32
from kbroker.cli.dlq.redrive import DeadLetter, LetterFilter, dead_letter
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.offsets import READ_COMMITTED
from kbroker.console.pages.queues import short_text
from kbroker.console.redrive_job import RedriveJob
from kbroker.console.rendering import CONFIRMED, console, integer, page, read_form, see_other

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


async def redrive(request: Request) -> Response:
    """Try a redrive, or begin it."""
    form, state = await read_form(request), console(request)
    topic = form.setdefault("topic", "")
    if form.get("to") == topic:
        raise CliError(f"choose another topic than {topic} itself: a redriven record also stays there")
    running = state.redrives.get(topic)
    if running is not None and running.is_running:
        raise CliError(f"a redrive of {topic} is running: wait for its end, or cancel it")
    job = RedriveJob(
        state.settings, topic, selection_of(form), form, is_trial=CONFIRMED not in form,
        rate=integer(form, "rate", 0, INT32) or None,
    )  # fmt: skip
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
