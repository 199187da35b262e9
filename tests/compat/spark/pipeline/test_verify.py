"""`archive verify`: sound archives pass, and each damage is found and named."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbroker.cli.app import run
from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.dataframe import archive_dataframe
from kbroker.pipeline.archive.manifest.model import ArchiveState, ManifestCommit, TopicInfo
from kbroker.pipeline.archive.offset_ranges import OffsetRange, ranges_of
from kbroker.pipeline.archive.staging.data_file_writer import data_file_writer
from kbroker.pipeline.archive.verification.comparison_plan import plan_comparison
from kbroker.pipeline.archive.verification.findings import Finding, VerificationReport, format_finding
from kbroker.pipeline.archive.verification.scope import VerificationScope
from kbroker.pipeline.archive.verification.verify import verify
from kbroker.pipeline.kafka import Cluster
from tests.compat.spark.helpers import Topics, Writer
from tests.compat.spark.pipeline.archives import (
    Restored,
    archive_topic,
    create_topic,
    delete_topic,
    new_archive,
    records,
    set_config,
)
from tests.compat.spark.pipeline.damages import DAMAGES, Place, Wanted
from tests.compat.support import running_broker, unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive, verified")]

RECORDS = 240


class Sound(NamedTuple):
    """A sound archive of one topic with two partitions over four days, in two commits, and its broker."""

    restored: Restored
    topic: str
    bootstrap: str


@pytest.fixture(scope="module")
def sound(spark: Any, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sound]:
    topics = Topics(bootstrap, "verified")
    topic = topics.create(2)
    topics.fill(topic, records(RECORDS))
    archive = new_archive(tmp_path_factory.mktemp("verify") / "archive")
    archive_topic(spark, archive, bootstrap, topic, {0: (0, 50), 1: (0, 60)})
    archive_topic(spark, archive, bootstrap, topic, {0: (50, 120), 1: (60, 120)})
    yield Sound(Restored(Path(archive.storage.root)), topic, bootstrap)
    topics.delete()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damage_is_found_and_named(spark: Any, sound: Sound, damage: Callable[[Place], list[Wanted]]) -> None:
    at = Place(spark, sound.restored.again())
    wanted = damage(at)
    report = verify(spark, at.archive.storage)
    for one in wanted:
        assert any(_is(one, finding) for finding in report.differences), f"{one}\n{_text(report)}"


def test_a_sound_archive_has_no_difference(spark: Any, sound: Sound) -> None:
    report = verify(spark, sound.restored.again().storage, sound.bootstrap)
    assert _text(report) == ""
    assert [(one.partition, one.archive_rows, one.broker_rows, one.is_equal) for one in report.compared] == [
        (0, 120, 120, True), (1, 120, 120, True)
    ]  # fmt: skip
    assert report.rows == RECORDS


LACKING = "at the broker, but not in the archive"
OTHERWISE = "different at the broker ({})"
# An archiver that loses and changes records, and does not know it: only the broker can tell.
WRONG = [
    ("offset = 3", None),  # lost
    ("offset BETWEEN 10 AND 19 AND partition = 1", None),
    ("offset = 30 AND partition = 0", {"value": "X'00'"}),
    ("offset = 31 AND partition = 0", {"timestamp": "timestamp + INTERVAL 1 MILLISECOND", "timestampType": "1"}),
    ("key IS NULL AND offset = 33", {"key": "X''"}),
    ("value = X'' AND partition = 1", {"value": "NULL"}),
    (
        "offset = 42 AND partition = 0",
        {"headers": "transform(headers, h -> named_struct('key', h.key, 'value', coalesce(h.value, X'')))"},
    ),
]


def wrongly(rows: Any) -> Any:
    from pyspark.sql import functions as f

    for condition, values in WRONG:
        if values is None:
            rows = rows.where(f"NOT ({condition})")
        for column, value in (values or {}).items():
            rows = rows.withColumn(column, f.expr(f"IF({condition}, {value}, {column})"))
    return rows


def test_what_the_broker_has_otherwise_is_found_record_by_record(spark: Any, sound: Sound, tmp_path: Path) -> None:
    archive = new_archive(tmp_path / "wrong")
    archive_topic(spark, archive, sound.bootstrap, sound.topic, {0: (0, 120), 1: (0, 120)}, change=wrongly)
    assert _text(verify(spark, archive.storage)) == ""
    report = verify(spark, archive.storage, sound.bootstrap)
    emptied = [n // 2 for n in range(RECORDS) if n % 2 and n // 3 % 4 == 2 and n // 2 not in (3, *range(10, 20))]
    assert [(one.kind, one.partition, one.text, one.offsets) for one in report.findings] == [
        ("missing record", 0, LACKING, ranges_of([3])),
        ("different record", 0, OTHERWISE.format("value"), ranges_of([30])),
        ("different record", 0, OTHERWISE.format("timestamp, timestampType"), ranges_of([31])),
        ("different record", 0, OTHERWISE.format("key"), ranges_of([33])),
        ("different record", 0, OTHERWISE.format("headers"), ranges_of([42])),
        ("missing record", 1, LACKING, ranges_of([3, *range(10, 20)])),
        *(("different record", 1, OTHERWISE.format("value"), spans) for spans in _by_file(archive, 1, emptied)),
    ]
    some = verify(
        spark,
        archive.storage,
        sound.bootstrap,
        VerificationScope(offsets=OffsetRange(31, 43), dates=frozenset({"2026-01-01"})),
    )
    assert [(one.kind, one.partition, one.offsets) for one in some.findings] == [
        ("different record", 0, ranges_of([31])),
        *(("different record", 1, ranges_of([n])) for n in emptied if n == 31),
    ]


def test_what_a_lost_file_held_is_told_where_the_broker_has_it_still(spark: Any, sound: Sound) -> None:
    at = Place(spark, sound.restored.again())
    at.flip(-1)
    report = verify(spark, at.archive.storage, sound.bootstrap)
    missing = [finding for finding in report.differences if finding.kind == "missing record"]
    assert [(one.file, one.offsets) for one in missing] == [(at.file.path, (at.whole,))]
    assert [(one.partition, one.is_equal) for one in report.compared] == [(0, False), (1, True)]
    for file in at.files:
        (at.root / file.path).unlink()
    report = verify(spark, at.archive.storage, sound.bootstrap)
    missing = [finding for finding in report.differences if finding.kind == "missing record"]
    assert sum(end - start for one in missing for start, end in one.offsets) == RECORDS
    assert {one.file for one in missing} == {file.path for file in at.files}


def test_retention_and_topics_that_are_gone_are_no_difference(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = unique("gone")
    create_topic(topics.bootstrap, topic)
    topics.fill(topic, records(60, partitions=1))
    archive = new_archive(tmp_path / "archive")
    archive_topic(spark, archive, topics.bootstrap, topic, {0: (0, 60)})
    topics.delete_before(topic, 0, 20)
    report = verify(spark, archive.storage, topics.bootstrap)
    assert (_text(report), report.compared[0].ranges) == ("", (OffsetRange(20, 60),))
    topics.delete_before(topic, 0, 60)
    assert _text(verify(spark, archive.storage, topics.bootstrap)) == ""

    delete_topic(topics.bootstrap, topic)
    create_topic(topics.bootstrap, topic)
    report = verify(spark, archive.storage, topics.bootstrap)
    assert [(one.kind, one.is_difference) for one in report.findings] == [("not compared", False)]
    assert "was created again" in report.findings[0].text
    delete_topic(topics.bootstrap, topic)
    required = verify(spark, archive.storage, topics.bootstrap, require_broker=True)
    assert [(one.kind, one.text) for one in required.differences] == [
        ("not compared", "the topic does not exist at the broker: not compared")
    ]


def test_archives_of_committed_records_are_compared_with_committed_records(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    writer = Writer(topics)
    writer.write(topic, range(10), 1, committed=True)
    writer.write(topic, range(10, 20), 1, committed=False)
    writer.write(topic, range(20, 25), 1, committed=True)
    writer.begin(topic, range(25, 30), 1)
    for committed_only, end, rows in ((True, 28, 15), (False, 33, 30)):
        archive = new_archive(tmp_path / f"archive-{committed_only}", committed_only=committed_only)
        archive_topic(spark, archive, topics.bootstrap, topic, {0: (0, end)})
        report = verify(spark, archive.storage, topics.bootstrap)
        assert (_text(report), report.rows, report.records_compared) == ("", rows, rows)
    writer.close()

    # A row where the broker has a transaction's marker; in a topic that is compacted the same may be right.
    odd = new_archive(tmp_path / "odd")
    archive_topic(spark, odd, topics.bootstrap, topic, {0: (0, 28)}, change=_moved)
    wanted = [("missing record", ranges_of([0])), ("unknown record", ranges_of([10]))]
    assert [(one.kind, one.offsets) for one in verify(spark, odd.storage, topics.bootstrap).differences] == wanted
    set_config(topics.bootstrap, topic, "cleanup.policy", "compact")
    report = verify(spark, odd.storage, topics.bootstrap)
    assert [(one.kind, one.offsets) for one in report.differences] == wanted[:1]
    assert [(one.kind, one.text.split()[0]) for one in report.notes] == [("compacted", "1")]


def test_topics_that_are_compacted_by_default_or_were_compacted(tmp_path: Path) -> None:
    compacting = running_broker(tmp_path, {"log.cleanup.policy": "compact"})
    with compacting as broker, Cluster(broker.bootstrap) as cluster:
        topics = Topics(broker.bootstrap, "compacted")
        default, was, never = (topics.create() for _ in range(3))
        for topic in (was, never):
            set_config(broker.bootstrap, topic, "cleanup.policy", "delete")
        assert cluster.in_force("cleanup.policy", [default, was]) == {default: "compact", was: "delete"}
        known = {was: TopicInfo("", 1, {"cleanup.policy": "compact,delete"})}
        state = ArchiveState(
            covered={TopicPartition(name, 0): (OffsetRange(0, 0),) for name in (default, was, never)}, topics=known
        )
        assert plan_comparison(cluster, state, VerificationScope(), True).compacted_topics == {default, was}


def test_files_that_compaction_replaces_meanwhile_are_no_difference(spark: Any, sound: Sound) -> None:
    archive = sound.restored.again()
    told: list[str] = []

    def compact(text: str) -> None:
        """Once, under the verification: all files become others."""
        told.append(text)
        if text == "counting the rows" and told.count(text) == 1:
            old = archive.state().files
            with data_file_writer(spark, archive) as writer:
                add = writer.write(archive_dataframe(spark, archive, archive.state()).coalesce(1), sort=True)
                writer.publish()
                archive.commit(lambda _: ManifestCommit("compact", 1, add=add, remove=tuple(old)))
            for path in old:
                archive.storage.delete(path)

    report = verify(spark, archive.storage, sound.bootstrap, progress=compact)
    assert (_text(report), report.commit_number, report.rows) == ("", 3, RECORDS)
    assert told.count("counting the rows") == 2


def _is(wanted: Wanted, found: Finding) -> bool:
    kind, file, offsets = wanted
    if found.kind != kind or (file is not None and found.file != file):
        return False
    return offsets is None or found.offsets == (offsets,)


def _by_file(archive: Archive, partition: int, offsets: list[int]) -> Iterator[tuple[OffsetRange, ...]]:
    """The offsets as they are told: those of one file together, files by their first one."""
    for file in sorted(archive.state().files.values(), key=lambda file: file.date):
        for part in file.partitions:
            if part.partition == partition and (here := [n for n in offsets if part.first <= n <= part.last]):
                yield ranges_of(here)


def _moved(rows: Any) -> Any:
    from pyspark.sql import functions as f

    return rows.withColumn("offset", f.expr("IF(offset = 0, 10, offset)"))


def _text(report: VerificationReport) -> str:
    return "\n".join(map(format_finding, report.findings))


def test_the_command_tells_by_its_exit_status(sound: Sound, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    at = Place(None, sound.restored.again())
    here, report = str(at.root), tmp_path / "report.json"

    def verified(*arguments: str) -> tuple[int, str, str]:
        status = run(["archive", "verify", here, *arguments])
        return status, *capfd.readouterr()

    status, told, _ = verified("--bootstrap", sound.bootstrap)
    assert (status, told.splitlines()[-1]) == (0, "no difference")
    assert "240 records of 2 partitions" in told
    at.flip(-1)
    status, told, _ = verified("--offline", "--report", str(report), "--topic", sound.topic)
    assert (status, told.splitlines()[-2:]) == (1, ["not compared with a broker", "2 differences"])
    assert told.startswith(f"changed file: {at.file.path} ({sound.topic}-{at.part.partition}): ")
    found = json.loads(report.read_text())
    assert (found["equal"], found["differences"]) == (False, {"changed file": 1, "unreadable file": 1})
    assert found["findings"][0]["offsets"] == [list(at.whole)]
    status, told, _ = verified("--offline", "--json", "--from", str(at.part.last + 1), "--date", at.file.date)
    assert (status, json.loads(told)["findings"]) == (0, [])

    for arguments, wrong, said in (
        (["--offline", "--topic", "absent"], 1, f"the archive has no topic absent; it has {sound.topic}"),
        (["--bootstrap", "127.0.0.1:1"], 1, "--offline verifies without a broker"),
        (["--offline", "--require-broker"], 2, "--offline excludes --bootstrap"),
        (["--offline", "--from", "5", "--to", "@7"], 2, "must both be offsets, or both be times"),
        (["--offline", "--from", "5", "--to", "5"], 2, "there is nothing from 5 to 5"),
        (["--offline", "--date", "yesterday"], 2, "--date must be a date"),
        (["--offline", "--report", f"{tmp_path}/absent/file"], 1, "No such file or directory"),
    ):
        status, _, errors = verified(*arguments)
        assert (status, len(errors.splitlines())) == (wrong, 1), errors
        assert said in errors
    assert run(["archive", "verify", str(tmp_path), "--offline"]) == 1
    assert "is not an archive" in capfd.readouterr().err
