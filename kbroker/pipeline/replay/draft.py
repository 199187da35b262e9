"""What a replay would be: looked at and checked, before anything is created or sent.

Times are milliseconds since 1970.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import groups, job, target
from kbroker.pipeline.replay.connection import Brokers, told
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Placed
from kbroker.pipeline.replay.job import Amount, Rows
from kbroker.pipeline.replay.plan import Request
from kbroker.pipeline.replay.positions import Start
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import Limits, check_regex, limits, pruned, wanted_parts, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class World:
    """Where a replay runs. `note` is told what a user should know, `progress` how many records are there so far."""

    spark: "SparkSession"
    archive: Archive
    brokers: Brokers
    bootstrap: str
    note: Callable[[str], None]
    progress: Callable[[int, int], None] = lambda done, total: None
    patience_s: float = 120.0


@dataclass(frozen=True)
class Draft:
    """What a request comes to, before anything is created or sent."""

    request: Request
    state: ArchiveState
    upto: Limits
    routing: Routing
    by_time: bool
    amounts: Mapping[Target, Amount]
    existing: Mapping[str, target.Existing]
    wanted: Mapping[str, target.Wanted]  # topics that are to be created
    starts: Mapping[Target, Start]  # of the topics that are there
    warnings: tuple[str, ...]
    committed: tuple[groups.Committed, ...]

    def rows(self, world: World) -> Rows:
        return Rows(
            world.spark, world.archive, self.state, self.request.selection, self.upto, self.routing, self.by_time
        )

    def places(self, world: World) -> list[Placed]:
        counts = {one: amount.rows for one, amount in self.amounts.items()}
        return job.places(self.rows(world), self.committed, counts)


@told
def drafted(world: World, request: Request, configs: Mapping[str, str]) -> Draft:
    """Looks at the archive and at the target. `configs`: of topics that are to be created. Raises PipelineError for
    whatever stands against the replay."""
    state = world.archive.state()
    if request.selection.key_regex is not None:
        check_regex(world.spark, request.selection.key_regex)
    upto = limits(state, request.selection.topics)
    sources = _sources(world, state, request, upto)
    existing = {name: target.existing(world.brokers, name) for name in dict.fromkeys(request.names.values())}
    wanted = {
        name: target.wanted(state, _feeding(request, name), _least(request, name, sources), configs)
        for name, found in existing.items()
        if found is None
    }
    there = {name: found for name, found in existing.items() if found is not None}
    if there and configs:
        raise PipelineError(f"topic {next(iter(there))} exists: --config is for topics that the replay creates")
    configs_of = _effective(world, there, wanted)
    partitions = {name: (there.get(name) or wanted[name]).partitions for name in existing}
    routing = Routing(request.names, partitions, request.by_key)
    routing.check(sources)
    by_time = routing.merges(sources)
    rows = Rows(world.spark, world.archive, state, request.selection, upto, routing, by_time)
    rows.require_files()
    amounts = _from_manifest(rows) or job.amounts(rows)
    if not amounts:
        raise PipelineError("nothing of the archive is selected: no record is as the options say")
    warnings = _check_topics(configs_of, amounts)
    starts = {
        Target(name, i): start
        for name in there
        for i, start in enumerate(target.starts(world.brokers, name, partitions[name]))
    }
    if not request.append:
        check_empty(starts)
    committed = tuple(groups.chosen(state.groups, request.groups, request.selection.topics)) if request.groups else ()
    named = {request.group_prefix + one.group for one in committed}
    groups.check_without_members(world.brokers, sorted(named))
    return Draft(request, state, upto, routing, by_time, amounts, there, wanted, starts, tuple(warnings), committed)


def check_topics(archive: Archive, topics: Iterable[str]) -> None:
    """Raises PipelineError for a topic that is not in the archive."""
    state = archive.state()
    known = {*state.topics, *(partition.topic for partition in state.covered)}
    for topic in topics:
        if topic not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none yet"
            raise PipelineError(f"{archive.storage.root}: the archive has no topic {topic}; {has}")


def _sources(world: World, state: ArchiveState, request: Request, upto: Limits) -> list[TopicPartition]:
    """The partitions that anything is selected of, as far as the manifest tells."""
    check_topics(world.archive, request.selection.topics)
    files = pruned(state, request.selection, upto)
    found = {
        TopicPartition(file.topic, part.partition)
        for file in files
        for part in wanted_parts(file, request.selection, upto)
    }
    if not found:
        raise PipelineError("nothing of the archive is selected: no partition has records there")
    return sorted(found)


def _feeding(request: Request, name: str) -> list[str]:
    return [source for source, to in request.names.items() if to == name]


def _least(request: Request, name: str, sources: list[TopicPartition]) -> int:
    feeding = set(_feeding(request, name))
    return max((source.partition + 1 for source in sources if source.topic in feeding), default=1)


def _from_manifest(rows: Rows) -> dict[Target, Amount] | None:
    """What each target gets, where the manifest says it all: files are taken whole and no key decides."""
    if rows.routing.by_key or rows.selection.reads_records:
        return None
    targets = rows.routing.targets
    found: dict[Target, Amount] = {}
    for file in rows.files():
        for part in wanted_parts(file, rows.selection, rows.limits):
            if not whole(part, rows.selection, rows.limits[file.topic][part.partition]):
                return None
            one = targets[rows.routing.fed_by(TopicPartition(file.topic, part.partition))[0]]
            known = found.get(one, Amount(0, 0, part.from_ms, part.to_ms))
            found[one] = Amount(
                known.rows + part.rows,
                known.size + part.bytes,
                min(known.from_ms, part.from_ms),
                max(known.to_ms, part.to_ms),
            )
    return dict(sorted(found.items()))


def _effective(
    world: World, there: Mapping[str, target.Existing], wanted: Mapping[str, target.Wanted]
) -> dict[str, Mapping[str, str]]:
    """The configs that act on each topic's records: a new one has the broker's where it has none of its own."""
    defaults = target.defaults(world.brokers) if wanted else {}
    created = {name: {**defaults, **one.configs} for name, one in wanted.items()}
    return {**{name: one.configs for name, one in there.items()}, **created}


def _check_topics(configs_of: Mapping[str, Mapping[str, str]], amounts: Mapping[Target, Amount]) -> list[str]:
    """Raises PipelineError where a topic would not keep timestamps; gives what else it would do."""
    now_ms = time.time_ns() // 1_000_000
    refusals, warnings = [], []
    for name, configs in configs_of.items():
        mine = [amount for one, amount in amounts.items() if one.topic == name]
        if mine:
            from_ms, to_ms = min(one.from_ms for one in mine), max(one.to_ms for one in mine)
            refusals += target.refusals(name, configs, from_ms, to_ms, now_ms)
            warnings += target.warnings(name, configs, from_ms, now_ms)
    if refusals:
        raise PipelineError("; ".join(refusals) + ": nothing was sent")
    return warnings


def check_empty(starts: Mapping[Target, Start]) -> None:
    for one, start in starts.items():
        if not start.empty:
            raise PipelineError(
                f"topic {one.topic} is not empty: partition {one.partition} ends at {start.offset}; replay into "
                f"another topic (--to), or after what is there (--append)"
            )
