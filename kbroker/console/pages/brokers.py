"""The brokers with their disks and roles, what is wrong with partitions, and the moves and plans under way."""

from collections.abc import Iterator, Mapping, Sequence
from time import time
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.cluster.brokers import broker_summaries
from kbroker.cli.cluster.cluster_state import (
    healing_text,
    problem_texts,
    read_cluster,
    read_healing,
    read_health,
    read_problems,
    running_log_dirs,
)
from kbroker.cli.cluster.plan_report import state_text
from kbroker.cli.cluster.plan_requests import MOVING, PENDING, SKIPPED, PlanDescription, plan_if_known
from kbroker.cli.common.partitions import CONDITIONS, ReplicaChanges, reassignments_if_known
from kbroker.cli.doctor.cluster_checks import check_racks, check_replication, compare_configs
from kbroker.cli.doctor.host import CheckResult, shared_configs
from kbroker.client.admin import BROKER, TypedResource, describe_cluster, describe_configs_request
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition
from kbroker.console.rendering import console, page
from protocol.messages.k32_describe_configs import DescribeConfigsResponse

# The most partitions with a problem, reassignments and moves that a page names.
MAX_NAMED = 100
CONFIGS_TIMEOUT_S = 5.0


class ClusterHealth(NamedTuple):
    """`brokers`: see broker_summaries; with total_bytes. `conditions`: the number of partitions by condition.

    `bad`: the first partitions with a condition, and its name. `notes`: what is wrong with brokers. `moving`:
    reassignments.
    """

    cluster_id: str
    brokers: Sequence[Mapping[str, Any]]
    conditions: Mapping[str, int]
    bad: Sequence[tuple[str, Partition]]
    notes: Sequence[str]
    moving: Mapping[Partition, ReplicaChanges]
    plan: PlanDescription | None


def read_cluster_health(cluster: ClusterClient) -> ClusterHealth:
    described, topics = read_cluster(cluster)
    directories = running_log_dirs(cluster, described)
    moving = reassignments_if_known(cluster)
    partitions = read_health(cluster, topics, moving)
    counts, bad = dict.fromkeys(CONDITIONS, 0), []
    for partition, health in partitions.items():
        for condition, is_met in CONDITIONS.items():
            if is_met(health):
                counts[condition] += 1
                bad.append((condition, partition))
    summaries = broker_summaries(described, list(partitions.values()), directories)
    brokers = [
        {**broker, "total_bytes": found.total_bytes if found else None}
        for broker in summaries
        for found in [directories.get(broker["broker"])]
    ]
    now_ms = round(time() * 1000)
    notes = [*problem_texts(read_problems(cluster), len(brokers))]
    notes += [healing_text(broker, now_ms) for broker in read_healing(cluster, brokers)]
    return ClusterHealth(described.cluster_id, brokers, counts, bad, notes, moving, plan_if_known(cluster))


async def brokers(request: Request) -> Response:
    health = await console(request).kafka.cached(read_cluster_health)
    moves = [] if health.plan is None else [
        move for state in (MOVING, PENDING, SKIPPED) for move in health.plan.in_state(state)
    ]  # fmt: skip
    return page(
        request, "brokers.html", health=health, bad=health.bad[:MAX_NAMED], most=MAX_NAMED,
        moving=sorted(health.moving.items())[:MAX_NAMED], moves=moves[:MAX_NAMED],
        plan=None if health.plan is None else state_text(health.plan),
    )  # fmt: skip


def read_findings(cluster: ClusterClient) -> list[CheckResult]:
    """Return what doctor checks of a cluster from outside: racks, replication, and configs that differ.

    Brokers that do not respond in time are left out.
    """
    brokers = [broker for broker in describe_cluster(cluster).brokers if not broker.is_fenced]
    requests = [
        (broker.broker_id, describe_configs_request([TypedResource(BROKER, str(broker.broker_id))]))
        for broker in brokers
    ]
    responses = cluster.request_all(requests, DescribeConfigsResponse, CONFIGS_TIMEOUT_S)
    found = {
        broker: shared_configs(response.results[0])
        for broker, response in responses
        if response.results and not response.results[0].error_code
    }

    def check() -> Iterator[CheckResult]:
        yield from check_racks({broker.broker_id: broker.rack for broker in brokers})
        for configs in list(found.values())[:1]:
            yield from check_replication(configs.get, len(brokers))
        yield from compare_configs(dict(sorted(found.items())))

    return list(check())


async def findings(request: Request) -> Response:
    found = await console(request).kafka.cached(read_findings)
    return page(request, "findings.html", findings=found)


routes = [Route("/brokers", brokers), Route("/brokers/findings", findings)]
