"""Groups with their lag, and one group: members, partitions, lag over time, and its offsets, which can be reset."""

from collections.abc import Mapping, Sequence
from time import monotonic, time
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.client import partition_leaders, raise_error, select_partitions
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.values import parse_integer, parse_time_ms, parse_topic_partitions
from kbroker.cli.groups.app import offset_rows
from kbroker.cli.groups.reset_offsets import (
    INACTIVE_STATES,
    OffsetReset,
    ResetTarget,
    commit_reset,
    format_plan,
    parse_plan,
    plan_group,
)
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import GroupDescription, describe_group
from kbroker.client.group_summaries import GroupSummary, summarize_groups
from kbroker.common import TopicPartition
from kbroker.console.kafka import Samples
from kbroker.console.rendering import CONFIRMED, confirmation, console, page, read_form, see_other
from protocol.errors import ErrorCode

# The size of a curve, in units of its SVG.
WIDTH, HEIGHT, MARGIN = 600, 100, 5


async def read_groups(request: Request) -> list[GroupSummary]:
    """Return all groups, those with the largest lag first, and remember their lags."""
    state = console(request)
    found = await state.kafka.cached(summarize_groups)
    state.lags.add({group.group_id: group.lag for group in found if group.lag is not None})
    return found


async def groups(request: Request) -> Response:
    return page(request, "groups.html", groups=await read_groups(request))


class GroupDetails(NamedTuple):
    """`offsets`: the JSON of `kbroker groups describe`."""

    description: GroupDescription
    offsets: Sequence[Mapping[str, Any]]


def read_group(cluster: ClusterClient, group_id: str) -> GroupDetails:
    """Raises CliError."""
    group = describe_group(cluster, group_id)
    raise_error(group.error_code, group.error_message, f"group {group_id}: ")
    return GroupDetails(group, offset_rows(cluster, group))


async def one(request: Request) -> Response:
    group_id = request.query_params.get("id", "")
    details = await console(request).kafka.cached(read_group, group_id)
    await read_groups(request)
    lags = [row["lag"] for row in details.offsets if row["lag"] is not None]
    lag = sum(lags) if lags else None
    curve = None if lag is None else lag_curve(console(request).lags, group_id, lag, monotonic())
    return page(
        request, "group.html", group=details.description, offsets=details.offsets, lag=lag, curve=curve,
        width=WIDTH, height=HEIGHT,
        is_inactive=details.description.state in INACTIVE_STATES,
    )  # fmt: skip


class LagCurve(NamedTuple):
    """The lag of a group over time. `points`: of an SVG polyline, the newest at the right."""

    points: str
    largest: int
    last: int
    seconds: int


def lag_curve(samples: Samples, group_id: str, lag: int, now_s: float) -> LagCurve | None:
    """Return the curve of the samples and of the lag now; None if no sample is older than a second."""
    found = [(sample.at_s, sample.values[group_id]) for sample in samples.samples if group_id in sample.values]
    if not found or now_s - found[0][0] < 1:
        return None
    found.append((now_s, lag))
    seconds, largest = now_s - found[0][0], max(lag for _, lag in found)
    height = HEIGHT - 2 * MARGIN
    points = [
        f"{WIDTH - (now_s - at_s) / seconds * WIDTH:.0f},{HEIGHT - MARGIN - lag / max(largest, 1) * height:.0f}"
        for at_s, lag in found
    ]
    return LagCurve(" ".join(points), largest, lag, round(seconds))


# Resets.


def plan(cluster: ClusterClient, group_id: str, target: ResetTarget, topics: str) -> list[OffsetReset]:
    """Return the reset of some partitions, TOPIC[:PARTITION,...], or of all with an offset. Raises CliError."""
    group = inactive_group(cluster, group_id)
    selections = [parse_topic_partitions(text) for text in topics.split()]
    leaders = partition_leaders(cluster, sorted({selection.topic for selection in selections}))
    chosen = sorted(TopicPartition(*partition) for partition in select_partitions(leaders, selections))
    return plan_group(cluster, group, target, chosen)


def inactive_group(cluster: ClusterClient, group_id: str) -> GroupDescription:
    """Return a group without members, or one that does not exist: a reset creates it. Raises CliError."""
    group = describe_group(cluster, group_id)
    if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise_error(group.error_code, group.error_message, f"group {group_id}: ")
    if group.state not in INACTIVE_STATES:
        raise CliError(f"the offsets of group {group_id} can be reset when it has no members: it is {group.state}")
    return group


def commit(cluster: ClusterClient, group_id: str, offsets: str) -> None:
    """Commit offsets in lines of TOPIC,PARTITION,OFFSET. Raises CliError."""
    lines = parse_plan(offsets, "the form")
    resets = [OffsetReset(line.topic, line.partition, None, line.offset) for line in lines]
    commit_reset(cluster, inactive_group(cluster, group_id), resets)


def parse_target(kind: str, value: str) -> ResetTarget:
    """Return the target of a form. Raises CliError."""
    match kind:
        case "earliest" | "latest":
            return ResetTarget(kind)
        case "offset":
            return ResetTarget("offset", parse_integer(value, "an offset"))
        case "shift":
            number = parse_integer(value.lstrip("+-"), "a shift")
            return ResetTarget("shift", -number if value.startswith("-") else number)
        case "time":
            return ResetTarget("time", parse_time_ms(value, round(time() * 1000)))
    raise usage_error(f"a target is earliest, latest, time, offset or shift, not {kind!r}")


async def reset(request: Request) -> Response:
    form, kafka = await read_form(request), console(request).kafka
    group_id = form.get("id", "")
    back = f"/groups/one?{urlencode({'id': group_id})}"
    if CONFIRMED in form:
        await kafka.read(commit, group_id, form.get("offsets", ""))
        kafka.forget()
        return see_other(back)
    target = parse_target(form.get("target", ""), form.get("value", "").strip())
    found = await kafka.read(plan, group_id, target, form.get("topics", ""))
    rows = [
        [each.topic, each.partition, each.old, each.new, None if each.old is None else f"{each.new - each.old:+,d}",
         each.note or ""]
        for each in found
    ]  # fmt: skip
    return confirmation(
        request, f"Reset offsets of {group_id}", ("topic", "partition", "committed", "new", "change", ""), rows,
        verb="Commit these offsets", fields={"id": group_id, "offsets": format_plan([(group_id, found)], False)},
        back=back,
    )  # fmt: skip


routes = [
    Route("/groups", groups),
    Route("/groups/one", one),
    Route("/groups/reset", reset, methods=["POST"]),
]
