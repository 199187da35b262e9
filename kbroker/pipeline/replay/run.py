"""Runs a replay: creates its topics and its plan, sends its records, restores its groups."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import LATEST, list_offsets
from kbroker.client.requests import BrokerError, check
from kbroker.client.security import current_security
from kbroker.common import TopicPartition
from kbroker.pipeline.cluster_admin import ClusterAdmin, as_pipeline_errors, cluster_client
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.archived_rows import ReplayedTopic, read_topics
from kbroker.pipeline.replay.batch_encoder import BATCH_OVERHEAD, ProducerSettings, parse_codec
from kbroker.pipeline.replay.group_offsets import offsets_to_commit, require_no_members
from kbroker.pipeline.replay.plan import (
    ReplayPlan,
    TargetTopic,
    derive_id,
    find_unfinished,
    mark_finished,
    mark_group_restored,
    new_id,
    save_new,
)
from kbroker.pipeline.replay.preparation import (
    PreparedReplay,
    ReplayContext,
    describe_topic,
    max_batch_bytes,
    read_starts,
    require_empty,
)
from kbroker.pipeline.replay.producer import ReplayProducer
from kbroker.pipeline.replay.selection import EndOffsets, SelectedRecords
from kbroker.pipeline.replay.sending import BATCH_BYTES, SendSettings, SpeedLimit, send_records
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse

PROGRESS_INTERVAL_S = 0.5
MAX_ATTEMPTS, RETRY_DELAY_S = 20, 0.25


@dataclass(frozen=True)
class ReplaySummary:
    """The result of a run."""

    plan: ReplayPlan
    sent: int  # records that this run has sent
    seconds: float
    groups: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)  # offsets committed by this run


@as_pipeline_errors
def target_cluster_id(context: ReplayContext) -> str:
    """Return the id of the target cluster, empty if it has none."""
    return context.cluster.cluster_id()


@as_pipeline_errors
def create_plan(context: ReplayContext, prepared: PreparedReplay, new: bool = False) -> ReplayPlan:
    """Create the missing topics and store the plan. Nothing is sent yet.

    Returns the plan of an unfinished replay of the same request if there is one, unless `new`.
    """
    storage, cluster = context.storage, context.cluster
    if not new:
        unfinished = find_unfinished(storage, prepared.request, cluster.cluster_id())
        if unfinished is not None:
            return unfinished
    _create_topics(context, prepared)
    cluster.reset()
    targets = {
        name: _target_topic(cluster, name, partitions, prepared)
        for name, partitions in prepared.records.routing.partitions.items()
    }
    producer_id, producer_epoch = _init_producer_id(cluster)
    plan = ReplayPlan(
        id=new_id() if new else derive_id(cluster.cluster_id(), targets),
        created_ms=time.time_ns() // 1_000_000,
        archive=context.archive.settings.id,
        request=prepared.request,
        limits=prepared.records.end_offsets,
        cluster=cluster.cluster_id(),
        targets=targets,
        by_time=prepared.records.by_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=prepared.committed,
        commits={topic: archived.state.commit for topic, archived in prepared.records.topics.items()},
        missing=_missing_offsets(prepared.records.topics, prepared.records.end_offsets),
    )
    if not prepared.request.append:
        require_empty(plan.starts())
    return save_new(storage, plan)


def _init_producer_id(cluster: ClusterClient) -> tuple[int, int]:
    """Return a new producer id and its epoch. A broker that has just started may not have one yet.

    Raises OSError, BrokerError.
    """
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    attempts = 0
    while True:
        response = cluster.any_broker().request(request, InitProducerIdResponse)
        try:
            check(response.error_code, "InitProducerId")
            return response.producer_id, response.producer_epoch
        except BrokerError as error:
            attempts += 1
            if not error.code.retriable or attempts == MAX_ATTEMPTS:
                raise
        time.sleep(RETRY_DELAY_S)


def _create_topics(context: ReplayContext, prepared: PreparedReplay) -> None:
    with ClusterAdmin(context.bootstrap) as cluster:
        for name, topic in prepared.new_topics.items():
            cluster.create_topic(name, topic.partitions, topic.configs)
            context.notify(f"created topic {name} with {topic.partitions} partition{'s' * (topic.partitions > 1)}")


def _target_topic(cluster: ClusterClient, name: str, partitions: int, prepared: PreparedReplay) -> TargetTopic:
    targets = [TopicPartition(name, number) for number in range(partitions)]
    starts = read_starts(cluster, targets).values()
    topic = describe_topic(cluster, name)
    if topic is None:
        raise PipelineError(f"topic {name} does not exist any more")
    if topic.partitions != partitions:
        raise PipelineError(f"topic {name} has {topic.partitions} partitions now, {partitions} before")
    totals = map(prepared.totals.get, targets)
    return TargetTopic(
        topic.topic_id,
        starts=tuple(start.offset for start in starts),
        empty=tuple(start.was_empty for start in starts),
        counts=tuple(records.rows if records is not None else 0 for records in totals),
    )


@as_pipeline_errors
def execute_plan(
    context: ReplayContext, plan: ReplayPlan, limit: SpeedLimit, on_progress: Callable[[int], None] = lambda sent: None
) -> ReplaySummary:
    """Send the records that are not sent yet, restore the groups, and mark the plan as finished.

    Does nothing for a finished plan. `on_progress` is called from a thread with the number of records that the targets
    have. Raises PipelineError; the plan can be executed again after that.
    """
    began_at = time.monotonic()
    if plan.done_ms is not None:
        context.notify(f"replay {plan.id} is already finished: nothing is sent or committed")
        return ReplaySummary(plan, 0, time.monotonic() - began_at)
    topics = read_topics(context.archive, plan.request.selection.topics)
    _require_same_source(context, plan, topics)
    _require_same_targets(context, plan)
    records = SelectedRecords(context.spark, topics, plan.request.selection, plan.limits, plan.routing, plan.by_time)
    counts = plan.counts()
    settings = _send_settings(context, plan)
    require_no_members(context.cluster, plan.remaining_groups)
    records.require_files()
    sent_before = _read_positions(context, plan, settings)
    with _progress_reports(context, plan, on_progress):
        sent_now = send_records(records, settings, counts, sent_before, limit)
    sent = {**sent_before, **sent_now}
    for target, count in counts.items():
        if sent.get(target, 0) != count:
            raise PipelineError(
                f"{target} got {sent.get(target, 0)} records, but {count} were selected when the replay was planned: "
                f"the archive has changed"
            )
    plan, restored = _restore_groups(context, plan, records)
    plan = mark_finished(context.storage, plan, time.time_ns() // 1_000_000)
    return ReplaySummary(plan, plan.rows - sum(sent_before.values()), time.monotonic() - began_at, restored)


def _missing_offsets(topics: Mapping[str, ReplayedTopic], limits: EndOffsets) -> dict[str, int]:
    return {name: archived.missing_below(limits.get(name, {})) for name, archived in topics.items()}


def _require_same_source(context: ReplayContext, plan: ReplayPlan, topics: Mapping[str, ReplayedTopic]) -> None:
    """Raise PipelineError unless the archive is that of the plan, and still has all its records."""
    if plan.archive != context.archive.settings.id:
        raise PipelineError(f"replay {plan.id} belongs to another archive")
    missing = _missing_offsets(topics, plan.limits)
    for name, before in plan.missing.items():
        if missing[name] != before:
            raise PipelineError(
                f"replay {plan.id} cannot continue: records of topic {name} were deleted from the archive since it was "
                f"planned; delete the target topics and start again with --new"
            )


def _require_same_targets(context: ReplayContext, plan: ReplayPlan) -> None:
    """Raise PipelineError unless cluster and topics are those of the plan."""
    for name, planned in plan.targets.items():
        topic = describe_topic(context.cluster, name)
        if context.cluster.cluster_id() != plan.cluster:
            raise PipelineError(f"replay {plan.id} goes into a different cluster than the one at {context.bootstrap}")
        if topic is None or topic.topic_id != planned.topic_id:
            raise PipelineError(f"topic {name} was deleted since replay {plan.id} was planned")


def _send_settings(context: ReplayContext, plan: ReplayPlan) -> SendSettings:
    topics = [describe_topic(context.cluster, name) for name in plan.targets]
    configs = [topic.configs for topic in topics if topic is not None]
    return SendSettings(
        context.bootstrap,
        ProducerSettings(plan.producer_id, plan.producer_epoch, parse_codec(plan.request.compression)),
        plan.routing.targets,
        plan.starts(),
        plan.id if plan.request.origin_headers else None,
        context.patience_s,
        max_batch_bytes(configs, BATCH_BYTES, BATCH_OVERHEAD),
        current_security().file,
        current_security().properties,
    )


def _read_positions(context: ReplayContext, plan: ReplayPlan, settings: SendSettings) -> dict[TopicPartition, int]:
    """Return how many records of the replay each target has."""
    producer = ReplayProducer(context.cluster, settings.producer, settings.starts, patience_s=context.patience_s)
    return {target: producer.position(target) for target in plan.counts()}


def _restore_groups(
    context: ReplayContext, plan: ReplayPlan, records: SelectedRecords
) -> tuple[ReplayPlan, dict[str, dict[TopicPartition, int]]]:
    """Commit the offsets of the plan's groups in the targets; return the plan without them, and the offsets."""
    if not plan.committed:
        return plan, {}
    counts = plan.counts()
    positions = records.group_positions(plan.committed, counts)
    offsets = offsets_to_commit(context.cluster, plan.producer_id, positions, plan.starts(), counts)
    restored = {}
    with ClusterAdmin(context.bootstrap) as cluster:
        for group, group_offsets in offsets.items():
            name = plan.request.group_prefix + group
            cluster.commit_offsets(name, group_offsets)
            # Stored immediately: after a failure here, the group may consume before the replay is resumed.
            plan = mark_group_restored(context.storage, plan, group)
            restored[name] = group_offsets
    return plan, restored


@contextmanager
def _progress_reports(context: ReplayContext, plan: ReplayPlan, on_progress: Callable[[int], None]) -> Iterator[None]:
    """Report the progress from a thread, measured by the targets' end offsets."""
    finished = threading.Event()

    def report() -> None:
        with cluster_client(context.bootstrap) as cluster:
            while not finished.wait(PROGRESS_INTERVAL_S):
                try:
                    on_progress(_count_sent(cluster, plan))
                except (OSError, BrokerError):
                    cluster.reset()

    reporter = threading.Thread(target=report, name="replay-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        finished.set()
        reporter.join()


def _count_sent(cluster: ClusterClient, plan: ReplayPlan) -> int:
    starts, counts = plan.starts(), plan.counts()
    ends = list_offsets(cluster, dict.fromkeys(counts, LATEST))
    return sum(min(count, ends[target] - starts[target].offset) for target, count in counts.items())
