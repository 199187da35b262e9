"""`kbroker archive verify` with a broker: each record that differs is found, and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import create_archive
from kbroker.archive.offset_ranges import OffsetRange, ranges_of
from kbroker.archive.verification.findings import VerificationReport, VerificationScope, format_finding
from kbroker.archive.verification.verify import verify
from kbroker.cli.app import run
from tests.compat.archive.topic_archives import (
    Row,
    archive_topic,
    connected,
    delete_topic,
    set_config,
    various_records,
)
from tests.compat.spark.helpers import Topics, Writer
from tests.compat.support import unique

pytestmark = [pytest.mark.feature("archive, verified"), pytest.mark.client("cli")]

RECORDS = 240
NOT_ARCHIVED = "at the broker, but not in the archive"
DIFFERENT = "different at the broker ({})"


class VerifiedTopic(NamedTuple):
    """A topic with two partitions and four dates, and an undamaged archive of it with two commits."""

    archive: Archive
    topic: str
    bootstrap: str


@pytest.fixture(scope="module")
def verified(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedTopic]:
    topics = Topics(bootstrap, "verified")
    topic = topics.create(2)
    topics.fill(topic, various_records(RECORDS))
    archive = create_archive(str(tmp_path_factory.mktemp("verify") / "archive"), {})
    archive_topic(archive, bootstrap, topic, {0: (0, 50), 1: (0, 60)})
    archive_topic(archive, bootstrap, topic, {0: (50, 120), 1: (60, 120)})
    yield VerifiedTopic(archive, topic, bootstrap)
    topics.delete()


def compare(
    archive: Archive, bootstrap: str, scope: VerificationScope | None = None, *, require_broker: bool = False
) -> VerificationReport:
    with connected(bootstrap) as cluster:
        return verify(archive.location, scope, cluster, bootstrap=bootstrap, require_broker=require_broker)


def text_of(report: VerificationReport) -> str:
    return "\n".join(map(format_finding, report.findings))


def test_an_undamaged_archive_has_no_difference(verified: VerifiedTopic) -> None:
    report = compare(verified.archive, verified.bootstrap)
    assert text_of(report) == ""
    compared = [(result.partition, result.archive_rows, result.broker_rows) for result in report.compared]
    assert compared == [(0, 120, 120), (1, 120, 120)]
    assert all(result.equal for result in report.compared)
    assert report.rows == RECORDS


def corrupt(rows: list[Row]) -> Iterator[Row]:
    """Lose and change records silently: only a comparison with the broker can find it."""
    for row in rows:
        offset, partition = row["offset"], row["partition"]
        if offset == 3 or (partition == 1 and 10 <= offset < 20):
            continue
        if partition == 0 and offset == 30:
            row["value"] = b"\0"
        elif partition == 0 and offset == 31:
            row["timestamp"] += 1
            row["timestampType"] = 1
        elif row["key"] is None and offset == 33:
            row["key"] = b""
        elif row["value"] == b"" and partition == 1:
            row["value"] = None
        elif partition == 0 and offset == 42:
            row["headers"] = [{"key": header["key"], "value": header["value"] or b""} for header in row["headers"]]
        yield row


def test_records_that_differ_from_the_broker_are_found(verified: VerifiedTopic, tmp_path: Path) -> None:
    archive = create_archive(str(tmp_path / "corrupt"), {})
    archive_topic(archive, verified.bootstrap, verified.topic, {0: (0, 120), 1: (0, 120)}, change=corrupt)
    assert text_of(verify(archive.location)) == ""
    report = compare(archive, verified.bootstrap)
    emptied = [n // 2 for n in range(RECORDS) if n % 2 and n // 3 % 4 == 2 and n // 2 not in (3, *range(10, 20))]
    files = [file for file in archive.table(verified.topic).files() if file.partition == 1]
    by_file = [[n for n in emptied if file.first <= n <= file.last] for file in sorted(files, key=lambda f: f.first)]
    assert [(finding.kind, finding.partition, finding.text, finding.offsets) for finding in report.findings] == [
        ("missing record", 0, NOT_ARCHIVED, ranges_of([3])),
        ("different record", 0, DIFFERENT.format("value"), ranges_of([30])),
        ("different record", 0, DIFFERENT.format("timestamp, timestampType"), ranges_of([31])),
        ("different record", 0, DIFFERENT.format("key"), ranges_of([33])),
        ("different record", 0, DIFFERENT.format("headers"), ranges_of([42])),
        ("missing record", 1, NOT_ARCHIVED, ranges_of([3, *range(10, 20)])),
        *(("different record", 1, DIFFERENT.format("value"), ranges_of(offsets)) for offsets in by_file if offsets),
    ]
    scope = VerificationScope(offsets=OffsetRange(31, 43), dates=frozenset({"2026-01-01"}))
    limited = compare(archive, verified.bootstrap, scope)
    assert [(finding.kind, finding.partition, finding.offsets) for finding in limited.findings] == [
        ("different record", 0, ranges_of([31])),
        *(("different record", 1, ranges_of([n])) for n in emptied if n == 31),
    ]


def test_records_of_a_lost_file_are_found_at_the_broker(verified: VerifiedTopic, tmp_path: Path) -> None:
    archive = create_archive(str(tmp_path / "lost"), {})
    archive_topic(archive, verified.bootstrap, verified.topic, {0: (0, 120), 1: (0, 120)})
    files = sorted(archive.table(verified.topic).files(), key=lambda file: (file.partition, file.first))
    path = Path(files[1].path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1])
    report = compare(archive, verified.bootstrap)
    missing = [finding for finding in report.differences if finding.kind == "missing record"]
    assert [(finding.file.rpartition("/")[2], finding.offsets) for finding in missing] == [
        (path.name, (files[1].offsets,))
    ]
    assert [(result.partition, result.equal) for result in report.compared] == [(0, False), (1, True)]
    for file in files:
        Path(file.path.removeprefix("file://")).unlink()
    missing = [found for found in compare(archive, verified.bootstrap).differences if found.kind == "missing record"]
    assert sum(end - start for finding in missing for start, end in finding.offsets) == RECORDS
    assert {finding.file for finding in missing} == {file.path.partition("/lost/")[2] for file in files}


def test_retention_and_deleted_topics_are_no_difference(bootstrap: str, tmp_path: Path) -> None:
    topics, topic = Topics(bootstrap, "gone"), unique("gone")
    topics.create(1, name=topic)
    topics.fill(topic, various_records(60, partitions=1))
    archive = create_archive(str(tmp_path), {})
    archive_topic(archive, bootstrap, topic, {0: (0, 60)})
    topics.delete_before(topic, 0, 20)
    report = compare(archive, bootstrap)
    assert (text_of(report), report.compared[0].spans) == ("", (OffsetRange(20, 60),))
    topics.delete_before(topic, 0, 60)
    assert text_of(compare(archive, bootstrap)) == ""

    delete_topic(bootstrap, topic)
    topics.create(1, name=topic)
    report = compare(archive, bootstrap)
    assert [(finding.kind, finding.is_difference) for finding in report.findings] == [("not compared", False)]
    assert "was created again" in report.findings[0].text
    delete_topic(bootstrap, topic)
    assert [(found.kind, found.text) for found in compare(archive, bootstrap, require_broker=True).differences] == [
        ("not compared", "the topic does not exist at the broker: not compared")
    ]


def test_archives_of_committed_records_are_compared_with_committed_records(bootstrap: str, tmp_path: Path) -> None:
    topics = Topics(bootstrap, "committed")
    topic = topics.create(1)
    writer = Writer(topics)
    writer.write(topic, range(10), 1, committed=True)
    writer.write(topic, range(10, 20), 1, committed=False)
    writer.write(topic, range(20, 25), 1, committed=True)
    writer.begin(topic, range(25, 30), 1)
    for committed_only, end, rows in ((True, 28, 15), (False, 33, 30)):
        archive = create_archive(str(tmp_path / f"archive-{committed_only}"), {"committed_only": committed_only})
        archive_topic(archive, bootstrap, topic, {0: (0, end)})
        report = compare(archive, bootstrap)
        assert (text_of(report), report.rows, report.records_compared) == ("", rows, rows)
    writer.close()

    # A row at the offset of a transaction marker; in a compacted topic it may be correct.
    def move(rows: list[Row]) -> list[Row]:
        return [*rows[1:10], {**rows[0], "offset": 10}, *rows[10:]]

    moved = create_archive(str(tmp_path / "moved"), {"committed_only": True})
    archive_topic(moved, bootstrap, topic, {0: (0, 28)}, change=move)
    expected = [("missing record", ranges_of([0])), ("unknown record", ranges_of([10]))]
    assert [(finding.kind, finding.offsets) for finding in compare(moved, bootstrap).differences] == expected
    set_config(bootstrap, topic, "cleanup.policy", "compact")
    report = compare(moved, bootstrap)
    assert [(finding.kind, finding.offsets) for finding in report.differences] == expected[:1]
    assert [(finding.kind, finding.text.split()[0]) for finding in report.notes] == [("compacted", "1")]
    topics.delete()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_codecs_and_both_types_of_timestamps(bootstrap: str, tmp_path: Path, codec: str) -> None:
    topics = Topics(bootstrap, "codec")
    configs = {"message.timestamp.type": "LogAppendTime"} if codec == "gzip" else {}
    topic = topics.create(1, configs)
    topics.fill(topic, various_records(1000, partitions=1), **{"compression.type": codec, "batch.size": 3000})
    archive = create_archive(str(tmp_path), {})
    archive_topic(archive, bootstrap, topic, {0: (5, 990)})
    report = compare(archive, bootstrap)
    assert (text_of(report), report.records_compared) == ("", 985)
    topics.delete()


def test_exit_status_and_output_of_the_command(
    verified: VerifiedTopic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive = create_archive(str(tmp_path / "archive"), {})
    archive_topic(archive, verified.bootstrap, verified.topic, {0: (0, 120), 1: (0, 120)})
    report = tmp_path / "report.json"
    file = min(archive.table(verified.topic).files(), key=lambda file: (file.partition, file.first))

    def run_verify(*arguments: str) -> tuple[int, str, str]:
        status = run(["archive", "verify", archive.location, *arguments])
        return status, *capfd.readouterr()

    status, output, errors = run_verify("--bootstrap", verified.bootstrap)
    assert (status, output.splitlines()[-1]) == (0, "no difference"), errors
    assert "240 records of 2 partitions" in output
    path = Path(file.path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1])
    status, output, _ = run_verify("--offline", "--report", str(report), "--topic", verified.topic)
    assert (status, output.splitlines()[-2:]) == (1, ["not compared with a broker", "2 differences"])
    assert output.startswith(f"changed file: {path.relative_to(archive.location)} ({verified.topic}-0): ")
    document = json.loads(report.read_text())
    assert (document["equal"], document["differences"]) == (False, {"changed file": 1, "unreadable file": 1})
    assert document["findings"][0]["offsets"] == [[file.first, file.last + 1]]
    status, output, _ = run_verify("--offline", "--json", "--from", str(file.last + 1), "--date", "2026-01-01")
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
    assert "no archive found" in capfd.readouterr().err
