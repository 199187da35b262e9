"""What a replay is to do, kept in the archive while it is under way: whoever goes on with it sends the same records in
the same order, with the same producer id.

Offsets are Kafka's, times milliseconds since 1970.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Committed
from kbroker.pipeline.replay.positions import Start
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.storage.storage import Storage

DIRECTORY = "_replays"
VERSION = 1
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("id", "archive", "cluster"), str),
    **dict.fromkeys(("created_ms", "state", "size", "producer_id", "producer_epoch"), int),
    "by_time": bool,
}


@dataclass(frozen=True)
class Request:
    """What a user asks for. Two commands that are equal in it are the same replay."""

    selection: Selection
    names: Mapping[str, str]  # source topic to target topic
    by_key: bool = False
    origin_headers: bool = True
    append: bool = False
    compression: str = "zstd"
    groups: tuple[str, ...] = ()  # restored when the records are there; groups.ALL for all
    group_prefix: str = ""


@dataclass(frozen=True)
class TargetTopic:
    """A topic as it was when the replay was planned; a row of each list for each partition."""

    topic_id: str  # hexadecimal; zeros where the broker has none
    starts: tuple[int, ...]  # where its logs ended
    empty: tuple[bool, ...]
    counts: tuple[int, ...]  # the records that are to be sent


@dataclass(frozen=True)
class Plan:
    """A replay; `done_ms` is None while it is under way."""

    id: str
    created_ms: int
    archive: str  # the archive's id
    state: int  # its latest commit when the replay was planned
    request: Request
    limits: Mapping[str, Mapping[int, int]]  # where each partition of the archive ended
    cluster: str  # of the target
    targets: Mapping[str, TargetTopic]
    by_time: bool  # records of several source partitions meet, and are ordered by time
    size: int  # bytes of keys and values
    producer_id: int
    producer_epoch: int
    committed: tuple[Committed, ...] = ()  # of the groups that are still to be restored
    done_ms: int | None = None

    @property
    def routing(self) -> Routing:
        partitions = {topic: len(one.starts) for topic, one in self.targets.items()}
        return Routing(self.request.names, partitions, self.request.by_key)

    @property
    def rows(self) -> int:
        return sum(sum(topic.counts) for topic in self.targets.values())

    def counts(self) -> dict[Target, int]:
        """The records of each target that gets any."""
        return {
            target: count for target, count in zip(self.routing.targets, self._each("counts"), strict=True) if count
        }

    def starts(self) -> dict[Target, Start]:
        rows = zip(self.routing.targets, self._each("starts"), self._each("empty"), strict=True)
        return {target: Start(offset, empty) for target, offset, empty in rows}

    @property
    def groups(self) -> list[str]:
        """The names under which groups are still to be restored."""
        return sorted({self.request.group_prefix + one.group for one in self.committed})

    def _each(self, name: str) -> list[Any]:
        return [item for topic in self.targets.values() for item in getattr(topic, name)]

    @property
    def path(self) -> str:
        return f"{DIRECTORY}/{self.id}.json"

    def to_bytes(self) -> bytes:
        data = {"version": VERSION, **asdict(self)}
        return json.dumps(data, indent=1).encode()


def new_id() -> str:
    return secrets.token_hex(6)


def id_at(cluster: str, targets: Mapping[str, TargetTopic]) -> str:
    """The one of a replay that begins just there: two that begin at once have the same."""
    places = [(name, topic.topic_id, topic.starts) for name, topic in sorted(targets.items())]
    return hashlib.sha256(json.dumps([cluster, places]).encode()).hexdigest()[:12]


def create(storage: Storage, plan: Plan) -> Plan:
    """Writes it down; or gives the plan of one that the same request began just there and just before, so that two at
    once are one replay, whose records come once."""
    if storage.create(plan.path, plan.to_bytes()):
        return plan
    other = load(storage, plan.id)
    if other.request == plan.request and other.done_ms is None:
        return other
    return create(storage, replace(plan, id=new_id()))


def restored(storage: Storage, plan: Plan, group: str) -> Plan:
    """Notes that a group's offsets are committed, so that they are not once more."""
    left = replace(plan, committed=tuple(one for one in plan.committed if one.group != group))
    storage.replace(plan.path, left.to_bytes())
    return left


def finish(storage: Storage, plan: Plan, now_ms: int) -> Plan:
    done = replace(plan, done_ms=now_ms)
    storage.replace(plan.path, done.to_bytes())
    return done


def load(storage: Storage, replay: str) -> Plan:
    """Raises PipelineError for one that is not there, or cannot be read."""
    path = f"{DIRECTORY}/{replay}.json"
    if not replay.isalnum() or not storage.exists(path):
        raise PipelineError(f"{storage.root} knows no replay {replay!r}: {_known(storage)}")
    return decoded(storage.read(path), path)


def unfinished(storage: Storage, request: Request, cluster: str) -> Plan | None:
    """The latest replay into this cluster that the same request began, and that is not done."""
    found = [plan for plan in plans(storage) if plan.done_ms is None and plan.cluster == cluster]
    same = [plan for plan in found if plan.request == request]
    return max(same, key=lambda plan: plan.created_ms, default=None)


def plans(storage: Storage) -> list[Plan]:
    names = [entry.name for entry in storage.list_directory(DIRECTORY) if entry.name.endswith(".json")]
    return [decoded(storage.read(f"{DIRECTORY}/{name}"), f"{DIRECTORY}/{name}") for name in names]


def decoded(data: bytes, path: str) -> Plan:
    try:
        found = json.loads(data)
        if found.pop("version") != VERSION:
            raise PipelineError(f"{path} is of a newer kbroker")
        request = found["request"]
        request = Request(
            **{
                **request,
                "selection": Selection.from_json(request["selection"]),
                "groups": tuple(request["groups"]),
            }
        )
        targets = {
            topic: TargetTopic(**{name: _tupled(value) for name, value in one.items()})
            for topic, one in found["targets"].items()
        }
        limits = {topic: {int(number): end for number, end in ends.items()} for topic, ends in found["limits"].items()}
        committed = tuple(Committed(group, TopicPartition(*source), at) for group, source, at in found["committed"])
        sets = {"request": request, "targets": targets, "limits": limits, "committed": committed}
        plan = Plan(**{**found, **sets})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{path} is damaged, or no plan of a replay: {error}") from None
    _check(plan, path)
    return plan


def _check(plan: Plan, path: str) -> None:
    for topic in plan.targets.values():
        if not len(topic.starts) == len(topic.empty) == len(topic.counts):
            raise PipelineError(f"{path} is damaged: its lists of partitions differ in length")
    for name, kind in _KINDS.items():
        if type(getattr(plan, name)) is not kind:
            raise PipelineError(f"{path} is damaged: {name} is not what it has to be")
    if plan.done_ms is not None and type(plan.done_ms) is not int:
        raise PipelineError(f"{path} is damaged: done_ms is no time")


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _known(storage: Storage) -> str:
    under_way: Sequence[Plan] = [plan for plan in plans(storage) if plan.done_ms is None]
    return "unfinished are " + ", ".join(plan.id for plan in under_way) if under_way else "none is unfinished"
