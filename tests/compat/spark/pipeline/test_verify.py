"""`kbroker archive verify`: undamaged archives have no difference, and each kind of damage is found."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbroker.cli.app import run
from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive, archive_dataframe
from kbroker.pipeline.archive.layout import OffsetRange, ranges_of
from kbroker.pipeline.archive.manifest import ArchiveState, ManifestCommit, TopicInfo
from kbroker.pipeline.archive.staging import data_file_writer
from kbroker.pipeline.archive.verification.broker_comparison import plan_comparison
from kbroker.pipeline.archive.verification.findings import (
    Finding,
    VerificationReport,
    VerificationScope,
    format_finding,
)
from kbroker.pipeline.archive.verification.verify import verify
from kbroker.pipeline.cluster_admin import ClusterAdmin
from tests.compat.spark.helpers import Topics, Writer
from tests.compat.spark.pipeline.archives import (
    ArchiveCopy,
    archive_topic,
    create_topic,
    delete_topic,
    new_archive,
    records,
    set_config,
)
from tests.compat.spark.pipeline.damages import DAMAGES, ExpectedFinding, Target
from tests.compat.support import running_broker, unique
from tests.sampling import third_of

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive, verified")]

RECORDS = 240


class VerifiedTopic(NamedTuple):
    """A topic with two partitions and four dates, and an undamaged archive of it with two commits."""

    copy: ArchiveCopy
    topic: str
    bootstrap: str


@pytest.fixture(scope="module")
def verified(spark: Any, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedTopic]:
    topics = Topics(bootstrap, "verified")
    topic = topics.create(2)
    topics.fill(topic, records(RECORDS))
    archive = new_archive(tmp_path_factory.mktemp("verify") / "archive")
    archive_topic(spark, archive, bootstrap, topic, {0: (0, 50), 1: (0, 60)})
    archive_topic(spark, archive, bootstrap, topic, {0: (50, 120), 1: (60, 120)})
    yield VerifiedTopic(ArchiveCopy(Path(archive.storage.root)), topic, bootstrap)
    topics.delete()


@pytest.mark.parametrize("damage", third_of(DAMAGES), ids=lambda damage: damage.__name__)
def test_damage_is_found(
    spark: Any, verified: VerifiedTopic, damage: Callable[[Target], list[ExpectedFinding]]
) -> None:
    target = Target(spark, verified.copy.restore())
    expected_findings = damage(target)
    report = verify(spark, target.archive.storage)
    for expected in expected_findings:
        assert any(_matches(expected, finding) for finding in report.differences), f"{expected}\n{_text(report)}"


def test_an_undamaged_archive_has_no_difference(spark: Any, verified: VerifiedTopic) -> None:
    report = verify(spark, verified.copy.restore().storage, verified.bootstrap)
    assert _text(report) == ""
    compared = [(result.partition, result.archive_rows, result.broker_rows) for result in report.compared]
    assert compared == [(0, 120, 120), (1, 120, 120)]
    assert all(result.equal for result in report.compared)
    assert report.rows == RECORDS


NOT_ARCHIVED = "at the broker, but not in the archive"
DIFFERENT = "different at the broker ({})"
# Records that an archiver loses and changes silently: only a comparison with the broker can find it.
ERRORS = [
    ("offset = 3", None),  # drop the record
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


def corrupt(rows: Any) -> Any:
    from pyspark.sql import functions as f

    for condition, values in ERRORS:
        if values is None:
            rows = rows.where(f"NOT ({condition})")
        for column, value in (values or {}).items():
            rows = rows.withColumn(column, f.expr(f"IF({condition}, {value}, {column})"))
    return rows


def test_records_that_differ_from_the_broker_are_found(spark: Any, verified: VerifiedTopic, tmp_path: Path) -> None:
    archive = new_archive(tmp_path / "corrupt")
    archive_topic(spark, archive, verified.bootstrap, verified.topic, {0: (0, 120), 1: (0, 120)}, change=corrupt)
    assert _text(verify(spark, archive.storage)) == ""
    report = verify(spark, archive.storage, verified.bootstrap)
    emptied = [n // 2 for n in range(RECORDS) if n % 2 and n // 3 % 4 == 2 and n // 2 not in (3, *range(10, 20))]
    assert [(finding.kind, finding.partition, finding.text, finding.offsets) for finding in report.findings] == [
        ("missing record", 0, NOT_ARCHIVED, ranges_of([3])),
        ("different record", 0, DIFFERENT.format("value"), ranges_of([30])),
        ("different record", 0, DIFFERENT.format("timestamp, timestampType"), ranges_of([31])),
        ("different record", 0, DIFFERENT.format("key"), ranges_of([33])),
        ("different record", 0, DIFFERENT.format("headers"), ranges_of([42])),
        ("missing record", 1, NOT_ARCHIVED, ranges_of([3, *range(10, 20)])),
        *(("different record", 1, DIFFERENT.format("value"), offsets) for offsets in _by_file(archive, 1, emptied)),
    ]
    limited = verify(
        spark,
        archive.storage,
        verified.bootstrap,
        VerificationScope(offsets=OffsetRange(31, 43), dates=frozenset({"2026-01-01"})),
    )
    assert [(finding.kind, finding.partition, finding.offsets) for finding in limited.findings] == [
        ("different record", 0, ranges_of([31])),
        *(("different record", 1, ranges_of([n])) for n in emptied if n == 31),
    ]


def test_records_of_a_lost_file_are_found_at_the_broker(spark: Any, verified: VerifiedTopic) -> None:
    target = Target(spark, verified.copy.restore())
    target.flip_bit(-1)
    report = verify(spark, target.archive.storage, verified.bootstrap)
    missing = [finding for finding in report.differences if finding.kind == "missing record"]
    assert [(finding.file, finding.offsets) for finding in missing] == [(target.file.path, (target.offsets,))]
    assert [(result.partition, result.equal) for result in report.compared] == [(0, False), (1, True)]
    for file in target.files:
        (target.root / file.path).unlink()
    report = verify(spark, target.archive.storage, verified.bootstrap)
    missing = [finding for finding in report.differences if finding.kind == "missing record"]
    assert sum(end - start for finding in missing for start, end in finding.offsets) == RECORDS
    assert {finding.file for finding in missing} == {file.path for file in target.files}


def test_retention_and_deleted_topics_are_no_difference(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = unique("gone")
    create_topic(topics.bootstrap, topic)
    topics.fill(topic, records(60, partitions=1))
    archive = new_archive(tmp_path / "archive")
    archive_topic(spark, archive, topics.bootstrap, topic, {0: (0, 60)})
    topics.delete_before(topic, 0, 20)
    report = verify(spark, archive.storage, topics.bootstrap)
    assert (_text(report), report.compared[0].spans) == ("", (OffsetRange(20, 60),))
    topics.delete_before(topic, 0, 60)
    assert _text(verify(spark, archive.storage, topics.bootstrap)) == ""

    delete_topic(topics.bootstrap, topic)
    create_topic(topics.bootstrap, topic)
    report = verify(spark, archive.storage, topics.bootstrap)
    assert [(finding.kind, finding.is_difference) for finding in report.findings] == [("not compared", False)]
    assert "was created again" in report.findings[0].text
    delete_topic(topics.bootstrap, topic)
    required = verify(spark, archive.storage, topics.bootstrap, require_broker=True)
    assert [(finding.kind, finding.text) for finding in required.differences] == [
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

    # A row at the offset of a transaction marker; in a compacted topic it may be correct.
    corrupt_archive = new_archive(tmp_path / "corrupt")
    archive_topic(spark, corrupt_archive, topics.bootstrap, topic, {0: (0, 28)}, change=_move_record)
    expected = [("missing record", ranges_of([0])), ("unknown record", ranges_of([10]))]
    assert [
        (finding.kind, finding.offsets)
        for finding in verify(spark, corrupt_archive.storage, topics.bootstrap).differences
    ] == expected
    set_config(topics.bootstrap, topic, "cleanup.policy", "compact")
    report = verify(spark, corrupt_archive.storage, topics.bootstrap)
    assert [(finding.kind, finding.offsets) for finding in report.differences] == expected[:1]
    assert [(finding.kind, finding.text.split()[0]) for finding in report.notes] == [("compacted", "1")]


def test_topics_that_are_compacted_by_default_or_formerly(tmp_path: Path) -> None:
    compacting_broker = running_broker(tmp_path, {"log.cleanup.policy": "compact"})
    with compacting_broker as broker, ClusterAdmin(broker.bootstrap) as cluster:
        topics = Topics(broker.bootstrap, "compacted")
        by_default, formerly, never = (topics.create() for _ in range(3))
        for topic in (formerly, never):
            set_config(broker.bootstrap, topic, "cleanup.policy", "delete")
        assert cluster.effective_configs("cleanup.policy", [by_default, formerly]) == {
            by_default: "compact",
            formerly: "delete",
        }
        archived = {formerly: TopicInfo("", 1, {"cleanup.policy": "compact,delete"})}
        state = ArchiveState(
            covered={TopicPartition(name, 0): (OffsetRange(0, 0),) for name in (by_default, formerly, never)},
            topics=archived,
        )
        assert plan_comparison(cluster, state, VerificationScope(), True).compacted_topics == {by_default, formerly}


def test_files_that_compaction_replaces_during_verification_are_no_difference(
    spark: Any, verified: VerifiedTopic
) -> None:
    archive = verified.copy.restore()
    steps: list[str] = []

    def compact(text: str) -> None:
        """Replace all files once, during the verification."""
        steps.append(text)
        if text == "counting the rows" and steps.count(text) == 1:
            old = archive.state().files
            with data_file_writer(spark, archive) as writer:
                add = writer.write(archive_dataframe(spark, archive, archive.state()).coalesce(1), sort=True)
                writer.publish()
                archive.commit(lambda _: ManifestCommit("compact", 1, add=add, remove=tuple(old)))
            for path in old:
                archive.storage.delete(path)

    report = verify(spark, archive.storage, verified.bootstrap, progress=compact)
    assert (_text(report), report.commit_number, report.rows) == ("", 3, RECORDS)
    assert steps.count("counting the rows") == 2


def test_exit_status_and_output_of_the_command(
    verified: VerifiedTopic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = Target(None, verified.copy.restore())
    directory, report = str(target.root), tmp_path / "report.json"

    def run_verify(*arguments: str) -> tuple[int, str, str]:
        status = run(["archive", "verify", directory, *arguments])
        return status, *capfd.readouterr()

    status, output, _ = run_verify("--bootstrap", verified.bootstrap)
    assert (status, output.splitlines()[-1]) == (0, "no difference")
    assert "240 records of 2 partitions" in output
    target.flip_bit(-1)
    status, output, _ = run_verify("--offline", "--report", str(report), "--topic", verified.topic)
    assert (status, output.splitlines()[-2:]) == (1, ["not compared with a broker", "2 differences"])
    assert output.startswith(f"changed file: {target.file.path} ({verified.topic}-{target.stats.partition}): ")
    document = json.loads(report.read_text())
    assert (document["equal"], document["differences"]) == (False, {"changed file": 1, "unreadable file": 1})
    assert document["findings"][0]["offsets"] == [list(target.offsets)]
    status, output, _ = run_verify(
        "--offline", "--json", "--from", str(target.stats.last + 1), "--date", target.file.date
    )
    assert (status, json.loads(output)["findings"]) == (0, [])

    for arguments, expected_status, message in (
        (["--offline", "--topic", "absent"], 1, f"the archive has no topic absent; it has {verified.topic}"),
        (["--bootstrap", "127.0.0.1:1"], 1, "--offline verifies without a broker"),
        (["--offline", "--require-broker"], 2, "--offline excludes --bootstrap"),
        (["--offline", "--from", "5", "--to", "@7"], 2, "must both be offsets, or both be times"),
        (["--offline", "--from", "5", "--to", "5"], 2, "the range from 5 to 5 is empty"),
        (["--offline", "--date", "yesterday"], 2, "--date must be a date"),
        (["--offline", "--report", f"{tmp_path}/absent/file"], 1, "No such file or directory"),
    ):
        status, _, errors = run_verify(*arguments)
        assert (status, len(errors.splitlines())) == (expected_status, 1), errors
        assert message in errors
    assert run(["archive", "verify", str(tmp_path), "--offline"]) == 1
    assert "is not an archive" in capfd.readouterr().err


def _matches(expected: ExpectedFinding, finding: Finding) -> bool:
    if finding.kind != expected.kind or (expected.file is not None and finding.file != expected.file):
        return False
    return expected.offsets is None or finding.offsets == (expected.offsets,)


def _by_file(archive: Archive, partition: int, offsets: list[int]) -> Iterator[tuple[OffsetRange, ...]]:
    """Yield the offsets as they are reported: one finding per file, ordered by their first offset."""
    for file in sorted(archive.state().files.values(), key=lambda file: file.date):
        for stats in file.partitions:
            if stats.partition == partition and (held := [n for n in offsets if stats.first <= n <= stats.last]):
                yield ranges_of(held)


def _move_record(rows: Any) -> Any:
    from pyspark.sql import functions as f

    return rows.withColumn("offset", f.expr("IF(offset = 0, 10, offset)"))


def _text(report: VerificationReport) -> str:
    return "\n".join(map(format_finding, report.findings))
