"""A replay from its draft to its end: planned, sent, resumed, and the groups put where they stood.

Times are milliseconds since 1970.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Cluster
from kbroker.pipeline.replay import groups, job, plan, target
from kbroker.pipeline.replay.connection import Brokers, RefusedError, told
from kbroker.pipeline.replay.draft import Draft, World, check_empty
from kbroker.pipeline.replay.encoding import BATCH_OVERHEAD, Target, Writer
from kbroker.pipeline.replay.job import Limit, Rows
from kbroker.pipeline.replay.plan import Plan, TargetTopic
from kbroker.pipeline.replay.positions import LATEST, Start, offset
from kbroker.pipeline.replay.producer import Sender
from kbroker.pipeline.replay.task import BATCH_BYTES, Settings
from protocol.records.compression import CODEC_NAMES

LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Summary:
    """What became of a replay. `sent`: by this run; `rows`: of the whole replay."""

    plan: Plan
    rows: int
    sent: int
    seconds: float
    groups: Mapping[str, Mapping[Target, int]] = field(default_factory=dict)


@told
def cluster_of(world: World) -> str:
    """The id of the cluster that the brokers are of; empty where they have none."""
    return world.brokers.cluster()


@told
def begin(world: World, draft: Draft, new: bool = False) -> Plan:
    """Creates what topics are missing and writes the plan down; nothing is sent yet.

    Where the same replay was begun while this one was drafted, that is the one to go on with, but for `new`.
    """
    storage = world.archive.storage
    begun = None if new else plan.unfinished(storage, draft.request, world.brokers.cluster())
    if begun is not None:
        return begun
    with Cluster(world.bootstrap) as cluster:
        for name, wanted in draft.wanted.items():
            cluster.create_topic(name, wanted.partitions, wanted.configs)
            world.note(f"created topic {name} with {wanted.partitions} partition{'s' * (wanted.partitions > 1)}")
    world.brokers.forget()
    topics = {}
    for name, partitions in draft.routing.partitions.items():
        starts = target.starts(world.brokers, name, partitions)
        counts = [
            draft.amounts[Target(name, i)].rows if Target(name, i) in draft.amounts else 0 for i in range(partitions)
        ]
        found = target.existing(world.brokers, name)
        if found is None:
            raise PipelineError(f"topic {name} is gone")
        if found.partitions != partitions:
            raise PipelineError(f"topic {name} has {found.partitions} partitions now, not {partitions} as before")
        topics[name] = TargetTopic(
            found.topic_id, tuple(one.offset for one in starts), tuple(one.empty for one in starts), tuple(counts)
        )
    if not draft.request.append:
        check_empty(
            {
                Target(n, i): Start(o, e)
                for n, t in topics.items()
                for i, (o, e) in enumerate(zip(t.starts, t.empty, strict=True))
            }
        )
    producer_id, epoch = target.producer_id(world.brokers)
    made = Plan(
        plan.new_id() if new else plan.id_at(world.brokers.cluster(), topics),
        time.time_ns() // 1_000_000,
        str(draft.state.settings.get("id", "")),
        draft.state.number,
        draft.request,
        draft.upto,
        world.brokers.cluster(),
        topics,
        draft.by_time,
        sum(amount.size for amount in draft.amounts.values()),
        producer_id,
        epoch,
        draft.committed,
    )
    return plan.create(storage, made)


@told
def go_on(world: World, made: Plan, limit: Limit) -> Summary:
    """Sends what is left of a replay, restores its groups, and ends it; of one that is done nothing is left. Raises
    PipelineError; it can be gone on with after that."""
    began = time.monotonic()
    if made.done_ms is not None:
        world.note(f"replay {made.id} was finished before: nothing is sent or committed")
        return Summary(made, made.rows, 0, time.monotonic() - began)
    state = world.archive.state()
    _check_same(world, made, state)
    rows = Rows(world.spark, world.archive, state, made.request.selection, made.limits, made.routing, made.by_time)
    counts = made.counts()
    settings = _settings(world, made)
    groups.check_without_members(world.brokers, made.groups)
    rows.require_files()
    had = _positions(world, made, settings)
    with _watched(world, made):
        outcomes = job.deliver(rows, settings, counts, had, limit, made.size // max(1, made.rows))
    has = {**had, **{one: outcome.has for one, outcome in outcomes.items()}}
    short = [one for one, count in counts.items() if has.get(one, 0) != count]
    if short:
        one = short[0]
        raise PipelineError(
            f"{one.topic}-{one.partition} got {has.get(one, 0)} records, but {counts[one]} were selected when the "
            f"replay was planned: the archive is not what it was"
        )
    made, placed = _restored(world, made, rows)
    made = plan.finish(world.archive.storage, made, time.time_ns() // 1_000_000)
    return Summary(made, made.rows, made.rows - sum(had.values()), time.monotonic() - began, placed)


def _check_same(world: World, made: Plan, state: ArchiveState) -> None:
    if made.archive != str(state.settings.get("id", "")):
        raise PipelineError(f"replay {made.id} is of another archive")
    for name, topic in made.targets.items():
        found = target.existing(world.brokers, name)
        if world.brokers.cluster() != made.cluster:
            raise PipelineError(f"replay {made.id} goes into another cluster than that at {world.bootstrap}")
        if found is None or found.topic_id != topic.topic_id:
            raise PipelineError(f"topic {name} is not the one any more that replay {made.id} goes into")


def _settings(world: World, made: Plan) -> Settings:
    configs = [found.configs for name in made.targets if (found := target.existing(world.brokers, name)) is not None]
    return Settings(
        world.bootstrap,
        Writer(made.producer_id, made.producer_epoch, codec(made.request.compression)),
        made.routing.targets,
        made.starts(),
        made.id if made.request.origin_headers else None,
        world.patience_s,
        target.batch_bytes(configs, BATCH_BYTES, BATCH_OVERHEAD),
    )


def codec(name: str) -> int:
    """The number of a codec; "none" is one. Raises PipelineError."""
    names = {"none": 0, **{known: number for number, known in enumerate(CODEC_NAMES)}}
    if name not in names:
        raise PipelineError(f"--compression is one of none, {', '.join(CODEC_NAMES[1:])}, not {name!r}")
    return names[name]


def _positions(world: World, made: Plan, settings: Settings) -> dict[Target, int]:
    """How much of the replay each target has."""
    sender = Sender(world.brokers, settings.writer, settings.starts, patience_s=world.patience_s)
    return {one: sender.position(one) for one in made.counts()}


def _restored(world: World, made: Plan, rows: Rows) -> tuple[Plan, dict[str, dict[Target, int]]]:
    """Commits what the groups had committed, as offsets of the targets; what it committed is no more in the plan."""
    if not made.committed:
        return made, {}
    placed = job.places(rows, made.committed, made.counts())
    offsets = groups.mapped(world.brokers, made.producer_id, placed, made.starts(), made.counts())
    named = {}
    with Cluster(world.bootstrap) as cluster:
        for group, found in offsets.items():
            name = made.request.group_prefix + group
            cluster.commit_offsets(name, {TopicPartition(*one): at for one, at in found.items()})
            # At once: if this ends here, the group may go on from there before the replay does.
            made = plan.restored(world.archive.storage, made, group)
            named[name] = found
    return made, named


@contextmanager
def _watched(world: World, made: Plan) -> Iterator[None]:
    """Tells the progress meanwhile, by the ends of the targets."""
    over = threading.Event()

    def look() -> None:
        with Brokers(world.bootstrap) as brokers:
            while not over.wait(LOOK_EVERY_S):
                with suppress(OSError, RefusedError):
                    world.progress(_arrived(brokers, made), made.rows)

    watcher = threading.Thread(target=look, name="replay-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _arrived(brokers: Brokers, made: Plan) -> int:
    starts = made.starts()
    try:
        return sum(
            min(count, offset(brokers, one, LATEST) - starts[one].offset) for one, count in made.counts().items()
        )
    except (OSError, RefusedError):
        brokers.forget()
        raise
