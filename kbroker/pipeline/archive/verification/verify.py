"""`archive verify`: an archive against itself and, where both still have the offsets, against the broker.

Nothing is changed. What is damaged never ends a verification: the report has everything that was found.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive, data_files
from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, OffsetRange
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.archive.verification import commit_chain as chain
from kbroker.pipeline.archive.verification import files as verification_files
from kbroker.pipeline.archive.verification import rules as verification_rules
from kbroker.pipeline.archive.verification.broker_records import MOST_BUCKETS, Broker, Plan, plan
from kbroker.pipeline.archive.verification.content import BUCKET, Content
from kbroker.pipeline.archive.verification.findings import (
    Compared,
    Finding,
    Report,
    common,
    difference,
    merged,
    minus,
    note,
)
from kbroker.pipeline.archive.verification.rules import Measured, Scope
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Cluster
from kbroker.pipeline.spark.explain import explain, is_sparks
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Scope", "require_archive", "verify"]

ATTEMPTS = 10
VIEW_ATTEMPTS = 10
VIEW_PAUSE_S = 0.3


class _Changed(Exception):
    """Files of the state that is looked at were removed by a newer commit."""


def verify(
    spark: "SparkSession",
    storage: Storage,
    bootstrap: str = "",
    scope: Scope | None = None,
    *,
    require_broker: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    advance: Callable[[int], None] = lambda size: None,
) -> Report:
    """Looks at everything in the scope, and returns what was found.

    `bootstrap`: the broker to compare with, none when it is empty. With `require_broker` a topic that the broker does
    not have is a difference. `tell` is called with what is being done, `advance` with bytes of files that were read.
    Raises PipelineError for what is no archive, topics that are not in it, and when the broker does not answer.
    """
    require_archive(storage)
    started = time.time()
    for _ in range(ATTEMPTS):
        cluster = Cluster(bootstrap) if bootstrap else None
        run = _Run(spark, storage, cluster, scope or Scope(), require_broker, tell)
        try:
            report = run.report(advance)
        except _Changed:
            tell("the archive is being compacted: starting over from what it is now")
            continue
        finally:
            if cluster is not None:
                cluster.close()
        report.started_ms = int(started * 1000)
        report.seconds = time.time() - started
        return report
    raise PipelineError(f"{storage.root}: its files were replaced under the verification {ATTEMPTS} times in turn")


def require_archive(storage: Storage) -> None:
    """Raises PipelineError, which says what it is instead. A damaged archive is one."""
    if not any(manifest.parsed_name(entry.name) for entry in storage.list_directory(manifest.DIRECTORY)):
        Archive.open(storage)


class _Run:
    """One look at one state."""

    def __init__(
        self,
        spark: "SparkSession",
        storage: Storage,
        cluster: Cluster | None,
        scope: Scope,
        require_broker: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._cluster = cluster
        self._scope = scope
        self._require_broker = require_broker
        self._tell = tell
        self._chain = chain.read(storage)
        self._state: ArchiveState = self._chain.state
        self._content = Content(spark, Archive(storage), self._state, scope)
        self._report = Report(storage.root, cluster.bootstrap if cluster is not None else "", self._state.number)

    def report(self, advance: Callable[[int], None]) -> Report:
        """Everything there is to find."""
        _require_topics(self._state, self._scope)
        compared = Plan()
        if self._cluster is not None:
            compared = plan(self._cluster, self._state, self._scope, self._require_broker)
        found = self._report.findings
        found += self._chain.findings
        found += verification_rules.layout(self._state, self._scope)
        seen = self._files(advance)
        found += seen.findings
        self._tell("counting the rows")
        readable = [*seen.intact, *seen.changed]
        measured = self._content.measured(seen.intact, compared.ranges, self._check)
        measured += self._content.measured(seen.changed, compared.ranges, self._check)
        lost = [*seen.lost, *(file for file in readable if file.path in self._content.unreadable)]
        readable = [file for file in readable if file.path not in self._content.unreadable]
        found += self._unreadable(lost)
        self._report.rows = sum(one.rows for one in measured)
        try:
            found += self._rows(readable, measured)
            found += self._strangers()
            found += self._view()
            found += compared.findings
            if compared.spans and self._cluster is not None:
                self._tell("comparing with the broker")
                found += self._comparison(self._cluster, compared, readable, measured, lost)
        except Exception as error:
            if is_sparks(error):
                self._check()
            raise
        return self._report

    def _check(self) -> None:
        """Raises _Changed when files of this state may have gone because of a newer one."""
        if set(self._state.files) - set(chain.read(self._storage).state.files):
            raise _Changed

    # The archive with itself.

    def _files(self, advance: Callable[[int], None]) -> verification_files.Files:
        files = [file for file in self._state.files.values() if self._scope.has_file(file)]
        self._tell(f"reading {len(files)} files, {sum(file.size for file in files) / 1e6:.0f} MB")
        try:
            seen = verification_files.look_at(self._storage, self._state, files, advance)
        except FileMissingError:
            self._check()
            raise
        if seen.missing:
            self._check()
        self._report.files, self._report.bytes = len(files), seen.bytes
        return seen

    def _unreadable(self, lost: Iterable[DataFile]) -> list[Finding]:
        return [
            difference("unreadable file", explain(error), file=file.path, topic=file.topic)
            for file in lost
            if (error := self._content.unreadable.get(file.path)) is not None
        ]

    def _rows(self, files: Sequence[DataFile], measured: Sequence[Measured]) -> list[Finding]:
        counted = verification_rules.parts(measured)
        found: list[Finding] = []
        for file in files:
            odd = list(verification_rules.rows(file, counted.get(file.path, ())))
            found += odd
            for number in {finding.partition for finding in odd if finding.partition is not None}:
                found += self._lost(file, number)
        found += verification_rules.misdated(measured, self._state)
        outside = {(one.file, one.partition) for one in verification_rules.suspicious(measured, self._state)}
        for path, number in sorted(outside):
            found += self._uncovered(self._state.files[path], number)
        return found + (self._content.doubled(files) if files else [])

    def _lost(self, file: DataFile, number: int) -> list[Finding]:
        at = TopicPartition(file.topic, number)
        offsets = self._content.offsets(file, number)
        lost = [
            span for part in file.parts if part.partition == number for span in verification_rules.lost(part, offsets)
        ]
        return [difference("rows", "rows that were committed are not there", at, file.path, lost)] if lost else []

    def _uncovered(self, file: DataFile, number: int) -> list[Finding]:
        at = TopicPartition(file.topic, number)
        outside = minus(self._content.offsets(file, number), self._state.covered.get(at, ()))
        return [difference("uncovered", "rows that no commit covers", at, file.path, outside)] if outside else []

    def _strangers(self) -> list[Finding]:
        unknown = {entry.name: entry for entry in data_files(self._storage) if entry.name not in self._state.files}
        writers, found = self._writers()
        if not unknown:
            return found
        now = chain.read(self._storage)
        foreign, notes = verification_files.strangers(unknown, writers, now.state, now.removed)
        found += notes
        for path in foreign:
            if self._scope.has_topic(path.split("/")[0].removeprefix("topic=")):
                found += self._directory(path) if unknown[path].is_directory else self._foreign(path)
        return found

    def _writers(self) -> tuple[set[str], list[Finding]]:
        try:
            return verification_files.writers(self._storage), []
        except PipelineError as error:
            reason = message_without_path(self._storage, owner.STAGING, error)
            what = f"it is in the place of the writers' directory ({reason})"
            return set(), [difference("foreign file", what, file=owner.STAGING)]

    def _foreign(self, path: str) -> list[Finding]:
        what = "no commit names it; readers that do not ask the manifest or Spark's list see its rows"
        held: list[tuple[TopicPartition, tuple[OffsetRange, ...]]] = []
        try:
            why = verification_files.unreadable(self._storage, path, is_ours=False)
            if why is None and path.startswith("topic="):
                held = self._content.foreign(path)
        except FileMissingError:
            return []
        except Exception as error:
            if not is_sparks(error):
                raise
            why = explain(error)
        if why is not None:
            what = f"no commit names it; readers that read every file as Parquet may fail ({why})"
        if not held:
            return [difference("foreign file", what, file=path)]
        return [difference("foreign file", what, at, path, spans) for at, spans in held]

    def _directory(self, path: str) -> list[Finding]:
        what = "it links to a directory that has another path too; readers may see rows twice, or not end"
        try:
            self._storage.list_directory(path)
        except PipelineError as error:
            reason = message_without_path(self._storage, path, error)
            what = f"it is a directory that cannot be listed ({reason}); readers may fail"
        return [difference("foreign file", what, file=path)]

    def _view(self) -> list[Finding]:
        """A writer brings Spark's list up to date right after its commit, and is given the time to do so."""
        state = self._state
        for attempt in range(VIEW_ATTEMPTS):
            found = verification_files.view(self._storage, state)
            if not found or (attempt and not self._is_changing(state)):
                break
            time.sleep(VIEW_PAUSE_S)
            state = chain.read(self._storage).state
        return found

    def _is_changing(self, state: ArchiveState) -> bool:
        return state.number != self._state.number or bool(self._writers()[0])

    # The archive with the broker.

    def _comparison(
        self,
        cluster: Cluster,
        compared: Plan,
        files: Sequence[DataFile],
        measured: Iterable[Measured],
        lost: Sequence[DataFile],
    ) -> list[Finding]:
        committed_only = bool(self._state.settings.get("committed_only"))
        broker = Broker(self._spark, cluster.bootstrap, compared, committed_only, self._scope)
        try:
            theirs = broker.sums()
            ours = verification_rules.sums(measured, self._state.files)
            unequal = verification_rules.unequal(ours, theirs)
            found = self._unlike(cluster, broker, compared, unequal, files, lost)
        except Exception as error:
            if not isinstance(error, PipelineError) and not is_sparks(error):
                raise
            self._check()
            return [difference("not compared", f"the comparison with the broker failed: {explain(error)}")]
        odd = {(finding.topic, finding.partition) for finding in found if finding.is_difference}
        for at, spans in compared.spans.items():
            here = sum(total.rows for (where, _), total in ours.items() if where == at)
            there = sum(total.rows for (where, _), total in theirs.items() if where == at)
            self._report.compared.append(Compared(*at, spans, here, there, tuple(at) not in odd))
        return found

    def _unlike(
        self,
        cluster: Cluster,
        broker: Broker,
        compared: Plan,
        unequal: Mapping[TopicPartition, Sequence[int]],
        files: Sequence[DataFile],
        lost: Sequence[DataFile],
    ) -> list[Finding]:
        """Record by record, what differs in these buckets."""
        spans, found = self._spans(cluster, compared, unequal)
        if not spans:
            return found
        chosen = [file for file in files if _has_some(file, spans)]
        unlike, compacted = broker.unlike(self._content.rows(chosen), spans)
        starts = cluster.beginnings(spans)
        for finding in unlike:
            found += _attributed(_without_retention(finding, starts), lost)
        if compacted:
            what = f"{compacted} archived records are not there any longer, because the topic is compacted"
            topics = ", ".join(sorted({at.topic for at in spans} & compared.compacted))
            found.append(note("compacted", what, topic=topics))
        return found

    def _spans(
        self, cluster: Cluster, compared: Plan, unequal: Mapping[TopicPartition, Sequence[int]]
    ) -> tuple[dict[TopicPartition, tuple[OffsetRange, ...]], list[Finding]]:
        """The offsets of unequal buckets that the broker has now, and what of the buckets is told without a look."""
        starts = cluster.beginnings(unequal)
        spans = {}
        found = []
        for at, buckets in unequal.items():
            ranges = merged(OffsetRange(number * BUCKET, (number + 1) * BUCKET) for number in buckets)
            both = common(compared.spans[at], ranges)
            gone = common(both, [OffsetRange(0, starts[at])])
            if gone:
                found.append(note("retention", "removed from the broker's log while it was read", at, offsets=gone))
            both = minus(both, gone)
            limit = merged(OffsetRange(number * BUCKET, (number + 1) * BUCKET) for number in buckets[:MOST_BUCKETS])
            if at.topic not in compared.compacted and len(buckets) > MOST_BUCKETS:
                what = "rows are not the same at the broker, and were not looked at one by one"
                found.append(difference("different record", what, at, offsets=minus(both, limit)))
                both = common(both, limit)
            if both:
                spans[at] = both
        return spans, found


def _require_topics(state: ArchiveState, scope: Scope) -> None:
    known = {at.topic for at in state.covered} | {file.topic for file in state.files.values()} | set(state.topics)
    absent = sorted(scope.topics - known)
    if absent:
        raise PipelineError(f"the archive has no topic {absent[0]}; it has {', '.join(sorted(known)) or 'none'}")


def _has_some(file: DataFile, spans: Mapping[TopicPartition, Sequence[OffsetRange]]) -> bool:
    return any(
        common([OffsetRange(part.first, part.last + 1)], spans.get(TopicPartition(file.topic, part.partition), ()))
        for part in file.parts
    )


def _without_retention(finding: Finding, starts: Mapping[TopicPartition, int]) -> Finding | None:
    """What is left of a finding when the records that retention took meanwhile are no difference."""
    if finding.kind != "unknown record" or finding.partition is None:
        return finding
    left = minus(finding.offsets, [OffsetRange(0, starts[TopicPartition(finding.topic, finding.partition)])])
    return finding._replace(offsets=left) if left else None


def _attributed(finding: Finding | None, lost: Iterable[DataFile]) -> list[Finding]:
    """Missing records by the file that had them, where one cannot be read."""
    if finding is None or finding.kind != "missing record":
        return [] if finding is None else [finding]
    result = []
    rest = finding.offsets
    for file in lost:
        parts = [part for part in file.parts if (file.topic, part.partition) == (finding.topic, finding.partition)]
        held = common(rest, [OffsetRange(part.first, part.last + 1) for part in parts])
        if held:
            what = "the broker has what the archive lost with this file"
            result.append(finding._replace(what=what, file=file.path, offsets=held))
            rest = minus(rest, held)
    return [*result, *([finding._replace(offsets=rest)] if rest else [])]
