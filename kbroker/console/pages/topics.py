"""The topics of the cluster, and one topic: its partitions, and the groups that read it."""

from asyncio import gather
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.group_summaries import GroupSummary
from kbroker.client.requests import check
from kbroker.console.pages.groups import read_groups
from kbroker.console.rendering import console, page
from kbroker.console.snapshot import TopicSnapshot, read_topics

MAX_GROUPS_SHOWN = 3


class TopicRow(NamedTuple):
    """A topic in the list. `rate`: records per second, None until it is known."""

    name: str
    snapshot: TopicSnapshot
    rate: float | None
    groups: list[tuple[str, int | None]]

    @property
    def lag(self) -> int:
        return max((lag or 0 for _, lag in self.groups), default=-1)


SORTS: dict[str, Callable[[TopicRow], Any]] = {
    "topic": lambda row: row.name,
    "partitions": lambda row: -len(row.snapshot.topic.partitions),
    "records": lambda row: -(row.snapshot.records or 0),
    "size": lambda row: -(row.snapshot.size or 0),
    "rate": lambda row: -(row.rate or 0),
    "lag": lambda row: -row.lag,
}


def readers(groups: list[GroupSummary]) -> dict[str, list[tuple[str, int | None]]]:
    """Return the groups that have committed offsets, with their lag, by topic; those that lag most first."""
    found: dict[str, dict[str, list[int | None]]] = {}
    for group in groups:
        for (topic, _), lag in group.lags.items():
            found.setdefault(topic, {}).setdefault(group.group_id, []).append(lag)
    return {
        topic: sorted(
            ((group_id, None if None in lags else sum(filter(None, lags))) for group_id, lags in of_topic.items()),
            key=lambda reader: -(reader[1] or 0),
        )
        for topic, of_topic in found.items()
    }


async def topics(request: Request) -> Response:
    state = console(request)
    found, summaries = await gather(state.kafka.cached(read_topics), read_groups(request))
    groups = readers(summaries)
    ends = {name: snapshot.end for name, snapshot in found.items()}
    shows_internal = "internal" in request.query_params
    rows = [
        TopicRow(name, snapshot, state.ends.rate(name, ends[name]), groups.get(name, []))
        for name, snapshot in found.items()
        if shows_internal or not snapshot.topic.is_internal
    ]
    state.ends.add(ends)
    sort = request.query_params.get("sort", "topic")
    rows.sort(key=SORTS.get(sort, SORTS["topic"]))
    return page(
        request, "topics.html", rows=rows, sort=sort, sorts=list(SORTS), shows_internal=shows_internal,
        hidden=len(found) - len(rows), max_groups=MAX_GROUPS_SHOWN,
    )  # fmt: skip


async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    kafka = console(request).kafka
    found, summaries = await gather(kafka.cached(read_topics, names=(name,)), read_groups(request))
    snapshot = found[name]
    check(snapshot.topic.error_code, f"topic {name}")
    groups = readers(summaries).get(name, [])
    ends = console(request).ends
    rate = ends.rate(name, snapshot.end)
    ends.add({name: snapshot.end})
    partitions = sorted(snapshot.topic.partitions, key=lambda row: row.partition_index)
    return page(
        request, "topic.html", topic=name, snapshot=snapshot, partitions=partitions, groups=groups, rate=rate
    )  # fmt: skip


routes = [Route("/topics", topics), Route("/topics/{topic}", topic)]
