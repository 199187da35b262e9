"""What kbroker adds to topics: delayed records, dead-letter topics, views; and share groups."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.values import count_text, parse_integer
from kbroker.cli.delayed import CANCEL, DELAY_ENABLE, DELIVER, PAGE_RECORDS, DelayedTopic, WaitingRecord
from kbroker.cli.records.formats import printable
from kbroker.client.admin import describe_topics, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import SHARE
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.requests import BrokerError, Partition
from kbroker.config.queue_configs import DEAD_LETTER_ENABLE, RETRY_GROUP, RETRY_TOPIC, VIEW_FILTER, VIEW_OF
from kbroker.console.pages.groups import read_groups
from kbroker.console.rendering import CONFIRMED, confirmation, console, iso_time, page, read_form, see_other
from protocol.messages.k10011_delayed_records import DelayedRecordsResponse

# The configs that make a topic a queue, and those that say more about one.
KINDS, DETAILS = (DELAY_ENABLE, DEAD_LETTER_ENABLE, VIEW_OF), (VIEW_OF, VIEW_FILTER, RETRY_TOPIC, RETRY_GROUP)
SHOWN_RECORDS = 100
MAX_TEXT = 200


class Queues(NamedTuple):
    """Topics with their configs. `dead_letters`: with the number of records, None if a partition has no leader."""

    delayed: Sequence[tuple[str, Mapping[str, str]]]
    dead_letters: Sequence[tuple[str, int | None]]
    views: Sequence[tuple[str, Mapping[str, str]]]


def read_queues(cluster: ClusterClient) -> Queues:
    topics = {topic.name: topic.partitions for topic in describe_topics(cluster) if not topic.is_internal}
    kinds = topic_configs(cluster, sorted(topics), KINDS)
    delayed, letters = (
        [topic for topic, values in kinds.items() if values.get(name) == "true"]
        for name in (DELAY_ENABLE, DEAD_LETTER_ENABLE)
    )
    views = [topic for topic, values in kinds.items() if values.get(VIEW_OF)]
    details = topic_configs(cluster, [*delayed, *views], DETAILS)
    partitions = [(topic, row.partition_index) for topic in letters for row in topics[topic] if row.leader_id >= 0]
    counts = _record_counts(cluster, partitions)
    return Queues(
        [(topic, details.get(topic, {})) for topic in delayed],
        [(topic, counts.get(topic)) for topic in letters],
        [(topic, details.get(topic, {})) for topic in views],
    )


def _record_counts(cluster: ClusterClient, partitions: Sequence[Partition]) -> dict[str, int]:
    """Return the number of offsets of each topic, which counts transaction markers, too."""
    counts: dict[str, int] = {}
    try:
        begins, ends = (list_offsets(cluster, dict.fromkeys(partitions, at)) for at in (EARLIEST, LATEST))
    except BrokerError:
        return counts
    for partition, end in ends.items():
        counts[partition.topic] = counts.get(partition.topic, 0) + end - begins[partition]
    return counts


async def queues(request: Request) -> Response:
    found, groups = await asyncio.gather(console(request).kafka.cached(read_queues), read_groups(request))
    shares = [group for group in groups if group.type == SHARE]
    return page(request, "queues.html", queues=found, shares=shares)


# Delayed records.


class DueRecords(NamedTuple):
    """The counts of each partition, and the records that are due next."""

    counts: Mapping[int, DelayedRecordsResponse]
    records: Sequence[WaitingRecord]


def read_delayed(cluster: ClusterClient, topic: str, key: str | None) -> DueRecords:
    """Raises CliError."""
    delayed = DelayedTopic(cluster, topic)
    partitions = delayed.partitions(None)
    records = pending(delayed, key, SHOWN_RECORDS)
    return DueRecords({index: delayed.counts(index) for index in partitions}, records)


def pending(delayed: DelayedTopic, key: str | None, most: int) -> list[WaitingRecord]:
    """Return the first records of all partitions, or of those with a key."""
    found: list[WaitingRecord] = []
    for index in delayed.partitions(None):
        # A search reads all records: without their values.
        size = most if key is None else PAGE_RECORDS
        found += islice(delayed.pending(index, size, include_payload=key is None, key=key), most)
    found.sort(key=lambda waiting: (waiting.record.due_ms, waiting.partition, waiting.record.offset))
    return found[:most]


def short_text(value: bytes | None) -> str | None:
    """Return bytes as text of bounded length on one line; None for null."""
    if value is None:
        return None
    text = printable(value[: 4 * MAX_TEXT])
    return f"{text[:MAX_TEXT]}…" if len(text) > MAX_TEXT or len(value) > 4 * MAX_TEXT else text


async def delayed_records(request: Request) -> Response:
    topic, key = request.query_params.get("topic", ""), request.query_params.get("key") or None
    found = await console(request).kafka.cached(read_delayed, topic, key)
    return page(
        request, "delayed.html", topic=topic, key=key, found=found, short_text=short_text, most=SHOWN_RECORDS,
        pending=sum(counts.pending_count for counts in found.counts.values()),
    )  # fmt: skip


def select_delayed(cluster: ClusterClient, topic: str, places: str, key: str | None) -> list[WaitingRecord]:
    """Return the records at places such as 0:42, or all with a key. Raises CliError."""
    delayed = DelayedTopic(cluster, topic)
    if not places:
        return pending(delayed, key, PAGE_RECORDS) if key is not None else []
    wanted = set(parse_places(places))
    found = []
    for index in sorted({partition for partition, _ in wanted}):
        delayed.partitions(index)  # raises for a missing one
        left = {offset for partition, offset in wanted if partition == index}
        for waiting in delayed.pending(index, PAGE_RECORDS):
            if waiting.record.offset in left:
                found.append(waiting)
                left.discard(waiting.record.offset)
            if not left:
                break
    return found


def parse_places(text: str) -> list[tuple[int, int]]:
    """Return partitions and offsets of places such as "0:42 1:7". Raises CliError."""
    places = [place.partition(":") for place in text.split()]
    return [(parse_integer(index, "a partition"), parse_integer(offset, "an offset")) for index, _, offset in places]


def change_delayed(cluster: ClusterClient, topic: str, operation: int, places: str) -> None:
    """Raises CliError with the first record that could not be changed."""
    delayed = DelayedTopic(cluster, topic)
    by_partition: dict[int, list[int]] = {}
    for index, offset in parse_places(places):
        delayed.partitions(index)  # raises for a missing one
        by_partition.setdefault(index, []).append(offset)
    for index, offsets in by_partition.items():
        errors = [(offset, error) for offset, error in delayed.change(operation, index, offsets) if error is not None]
        for offset, error in errors[:1]:
            raise CliError(f"{topic}-{index}, offset {offset}: {error}; {count_text(len(errors), 'record')} failed")


async def change(request: Request) -> Response:
    form, kafka = await read_form(request), console(request).kafka
    topic, places, key = form.get("topic", ""), form.get("places", ""), form.get("key")
    operations = {"cancel": CANCEL, "deliver": DELIVER}
    operation = form.get("operation", "")
    if operation not in operations:
        raise usage_error("choose what to do: cancel, or deliver")
    back = f"/queues/delayed?{urlencode({'topic': topic})}"
    if CONFIRMED in form:
        await kafka.read(change_delayed, topic, operations[operation], places)
        kafka.forget()
        return see_other(back)
    found = await kafka.read(select_delayed, topic, places, key)
    if not found:
        raise CliError(f"{topic} has no such pending record: choose records, or a key")
    rows = [
        [each.partition, each.record.offset, iso_time(each.record.due_ms), short_text(each.record.key)]
        for each in found
    ]
    verb = "Cancel" if operation == "cancel" else "Deliver now"
    chosen = " ".join(f"{each.partition}:{each.record.offset}" for each in found)
    return confirmation(
        request, f"{verb}: {count_text(len(found), 'record')} of {topic}", ("partition", "offset", "due", "key"), rows,
        verb=verb, back=back, fields={"topic": topic, "operation": operation, "places": chosen},
        notes=["Records that are cancelled are never delivered."] if operation == "cancel" else (),
    )  # fmt: skip


routes = [
    Route("/queues", queues),
    Route("/queues/delayed", delayed_records),
    Route("/queues/delayed/change", change, methods=["POST"]),
]
