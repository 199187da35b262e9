"""The plan of a replay, kept as JSON in the archive from its start to its end.

Every run of a replay follows the plan, so it sends the same records in the same order with the same producer id, and a
run that continues an earlier one sends each record once. Fields are the JSON's keys. Times are milliseconds since 1970.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from kbroker.archive.storage.storage import Storage
from kbroker.archive.typed_json import read_json
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.group_offsets import CommittedOffset
from kbroker.pipeline.replay.producer import TargetStart
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import EndOffsets, Selection

DIRECTORY = "_replays"
VERSION = 1


@dataclass(frozen=True)
class ReplayRequest:
    """The request of a user. Commands with equal requests are the same replay."""

    selection: Selection
    names: Mapping[str, str]  # source topic to target topic
    by_key: bool = False
    origin_headers: bool = True
    append: bool = False
    compression: str = "zstd"
    groups: tuple[str, ...] = ()  # to restore; group_offsets.ALL_GROUPS for all
    group_prefix: str = ""


@dataclass(frozen=True)
class TargetTopic:
    """The state of a target topic when the replay was planned. The tuples have an item for each partition."""

    topic_id: str  # hexadecimal; zeros if the broker has no topic ids
    starts: tuple[int, ...]  # end offsets before the replay
    empty: tuple[bool, ...]
    counts: tuple[int, ...]  # records of the replay


@dataclass(frozen=True)
class ReplayPlan:
    """A replay that has begun; `done_ms` is None until it has finished."""

    id: str
    created_ms: int
    archive: str  # the archive's id
    request: ReplayRequest
    limits: EndOffsets  # where each partition of the archive ended
    cluster: str  # the id of the target cluster
    targets: Mapping[str, TargetTopic]
    by_time: bool  # records of several source partitions meet in a target, and are ordered by time
    producer_id: int
    producer_epoch: int
    committed: tuple[CommittedOffset, ...]  # of the groups that are not restored yet
    done_ms: int | None = None
    commits: Mapping[str, int] = field(default_factory=dict)  # of each topic's table when the replay was planned
    # topic to offsets below the limits that were in gaps: if there are more, records were deleted from the archive
    missing: Mapping[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{DIRECTORY}/{self.id}.json"

    @property
    def routing(self) -> Routing:
        partitions = {topic: len(target.starts) for topic, target in self.targets.items()}
        return Routing(self.request.names, partitions, self.request.by_key)

    @property
    def rows(self) -> int:
        return sum(sum(topic.counts) for topic in self.targets.values())

    @property
    def remaining_groups(self) -> list[str]:
        """The names of the groups that are not restored yet."""
        return sorted({self.request.group_prefix + offset.group for offset in self.committed})

    def counts(self) -> dict[TopicPartition, int]:
        """Return the number of records of each target that receives any."""
        return {target: topic.counts[i] for target, topic, i in self._target_partitions() if topic.counts[i]}

    def starts(self) -> dict[TopicPartition, TargetStart]:
        return {target: TargetStart(topic.starts[i], topic.empty[i]) for target, topic, i in self._target_partitions()}

    def _target_partitions(self) -> Iterator[tuple[TopicPartition, TargetTopic, int]]:
        for name, topic in self.targets.items():
            for partition in range(len(topic.starts)):
                yield TopicPartition(name, partition), topic, partition

    def to_bytes(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode()


def new_id() -> str:
    return secrets.token_hex(6)


def derive_id(cluster_id: str, targets: Mapping[str, TargetTopic]) -> str:
    """Return the id of a replay that begins at these offsets. Two that begin at the same time have the same id."""
    starts = [(name, topic.topic_id, topic.starts) for name, topic in sorted(targets.items())]
    return hashlib.sha256(json.dumps([cluster_id, starts]).encode()).hexdigest()[:12]


def save_new(storage: Storage, plan: ReplayPlan) -> ReplayPlan:
    """Store a plan and return it.

    If the same request has just stored an unfinished plan with the same id, return that one: two simultaneous commands
    are one replay.
    """
    if storage.create(plan.path, plan.to_bytes()):
        return plan
    other = load_plan(storage, plan.id)
    if other.request == plan.request and other.done_ms is None:
        return other
    return save_new(storage, replace(plan, id=new_id()))


def mark_group_restored(storage: Storage, plan: ReplayPlan, group: str) -> ReplayPlan:
    """Remove a group's offsets from the plan, so that they are not committed again."""
    updated = replace(plan, committed=tuple(offset for offset in plan.committed if offset.group != group))
    storage.replace(plan.path, updated.to_bytes())
    return updated


def mark_finished(storage: Storage, plan: ReplayPlan, now_ms: int) -> ReplayPlan:
    updated = replace(plan, done_ms=now_ms)
    storage.replace(plan.path, updated.to_bytes())
    return updated


def load_plan(storage: Storage, replay_id: str) -> ReplayPlan:
    """Return a stored plan. Raises PipelineError if there is none, or it cannot be read."""
    path = f"{DIRECTORY}/{replay_id}.json"
    if not replay_id.isalnum() or not storage.exists(path):
        ids = ", ".join(plan.id for plan in list_plans(storage) if plan.done_ms is None)
        known = f"unfinished replays: {ids}" if ids else "none is unfinished"
        raise PipelineError(f"{storage.root} has no replay {replay_id!r}; {known}")
    return decode_plan(storage.read(path), path)


def find_unfinished(storage: Storage, request: ReplayRequest, cluster_id: str) -> ReplayPlan | None:
    """Return the latest unfinished replay of the same request into the same cluster."""
    same = [
        plan
        for plan in list_plans(storage)
        if plan.done_ms is None and plan.cluster == cluster_id and plan.request == request
    ]
    return max(same, key=lambda plan: plan.created_ms, default=None)


def list_plans(storage: Storage) -> list[ReplayPlan]:
    paths = [f"{DIRECTORY}/{entry.name}" for entry in storage.list_directory(DIRECTORY) if entry.name.endswith(".json")]
    return [decode_plan(storage.read(path), path) for path in paths]


def decode_plan(data: bytes, path: str) -> ReplayPlan:
    """Decode `to_bytes`. Raises PipelineError, with the path, for anything else."""
    try:
        fields = json.loads(data)
        if fields["version"] != VERSION:
            raise PipelineError(f"{path} was written by a newer kbroker")
        plan = read_json(ReplayPlan, fields)
        for topic in plan.targets.values():
            if not len(topic.starts) == len(topic.empty) == len(topic.counts):
                raise ValueError("the lists of a topic's partitions differ in length")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{path} is damaged, or not the plan of a replay: {error}") from None
    return plan
