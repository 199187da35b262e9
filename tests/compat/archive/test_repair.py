"""`kbroker archive repair` with a broker: whatever is damaged, afterwards the archive equals the topic again."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.repair.repair import TopicRepair, repair
from kbroker.archive.topic_state import Gap
from kbroker.archive.verification.findings import VerificationReport, format_finding
from kbroker.archive.verification.verify import verify
from kbroker.cli.app import run
from tests.compat.archive.topic_archives import archive_topic, connected, various_records
from tests.compat.spark.helpers import Topics
from tests.sampling import third_of
from tests.unit.support.archive_damages import DAMAGES, Target

pytestmark = [pytest.mark.feature("archive, repaired"), pytest.mark.client("cli")]

RECORDS = 600


class Archived:
    """A topic and an archive of it, which a test may damage."""

    def __init__(self, directory: Path, topics: Topics) -> None:
        self.directory = directory
        self.bootstrap = topics.bootstrap
        self.topic = topics.create(2)
        topics.fill(self.topic, various_records(RECORDS))
        archive = create_archive(str(directory), {})
        for start, end in ((0, 100), (100, 190), (190, 300)):
            archive_topic(archive, self.bootstrap, self.topic, {0: (start, end), 1: (start, end)})
        self._copy = directory.with_name("copy")
        shutil.copytree(directory, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self.directory)
        shutil.copytree(self._copy, self.directory)

    def repair(self) -> TopicRepair:
        with connected(self.bootstrap) as cluster:
            [done] = repair(str(self.directory), cluster=cluster)
        return done

    def verify(self) -> VerificationReport:
        with connected(self.bootstrap) as cluster:
            return verify(str(self.directory), cluster=cluster)


@pytest.fixture(scope="module")
def archived(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    topics = Topics(bootstrap, "repaired")
    yield Archived(tmp_path_factory.mktemp("repair") / "archive", topics)
    topics.delete()


def assert_complete(archived: Archived) -> None:
    report = archived.verify()
    findings = [format_finding(found) for found in report.findings if found.kind not in ("foreign file", "orphan")]
    assert (findings, report.rows, report.records_compared) == ([], RECORDS, RECORDS)


def test_any_damage_is_repaired(archived: Archived) -> None:
    for damage in third_of(DAMAGES):
        archived.restore()
        damage(Target(archived.directory, archived.topic))
        done = archived.repair()
        assert (done.lost, done.unrepaired) == ({}, []), damage.__name__
        assert_complete(archived)


@pytest.mark.parametrize("seed", third_of(range(3)))
def test_random_damages_are_repaired(archived: Archived, seed: int) -> None:
    """Several of them at the same time."""
    chance = random.Random(seed)
    for _ in range(4):
        archived.restore()
        names = []
        for damage in chance.sample(DAMAGES, 3):
            try:
                damage(Target(archived.directory, archived.topic))
            except Exception:  # what is damaged already cannot always be damaged in another way
                continue
            names.append(damage.__name__)
        assert archived.repair().lost == {}, names
        assert_complete(archived)


def test_holes_and_silently_lost_records_are_read_again(archived: Archived, tmp_path: Path) -> None:
    archive = create_archive(str(tmp_path), {})
    for start, end in ((0, 50), (80, 300)):
        archive_topic(
            archive,
            archived.bootstrap,
            archived.topic,
            {0: (start, end)},
            lambda rows: [r for r in rows if r["offset"] % 7],
        )
    with connected(archived.bootstrap) as cluster:
        [done] = repair(str(tmp_path), cluster=cluster)
        assert (done.lost, done.rows) == ({}, 30 + len([n for n in (*range(50), *range(80, 300)) if n % 7 == 0]))
        report = verify(str(tmp_path), cluster=cluster)
    assert (report.findings, report.rows) == ([], 300)
    assert open_archive(str(tmp_path)).table(archived.topic).state.covered == {0: (OffsetRange(0, 300),)}


def test_what_the_broker_no_longer_has_is_lost(
    bootstrap: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topics = Topics(bootstrap, "lost")
    archived = Archived(tmp_path / "archive", topics)
    topics.delete_before(archived.topic, 0, 120)
    for file in Target(archived.directory, archived.topic).files:
        if file.partition == 0:
            Path(file.path.removeprefix("file://")).unlink()
    command = ["archive", "repair", str(archived.directory), "--bootstrap", bootstrap]
    assert run([*command, "--dry-run"]) == 0
    assert f"{archived.topic}-0: offsets 0 to 299: to read again" in capfd.readouterr().out
    assert run(command) == 0
    output = capfd.readouterr().out
    assert f"{archived.topic}-0: offsets 0 to 119: lost, and recorded as a gap" in output
    assert f"{archived.topic}: 180 records read again" in output
    report = archived.verify()
    assert (report.differences, report.rows) == ([], RECORDS - 120)
    assert [(found.kind, found.offsets) for found in report.notes] == [("lost", (OffsetRange(0, 120),))]
    assert open_archive(str(archived.directory)).table(archived.topic).state.gaps == (Gap(0, 0, 120, "lost"),)
    assert run(command) == 0
    assert f"{archived.topic}: nothing to repair" in capfd.readouterr().out
    topics.delete()


def test_records_that_differ_from_the_broker_are_not_repaired(
    archived: Archived, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive = create_archive(str(tmp_path), {})
    archive_topic(
        archive,
        archived.bootstrap,
        archived.topic,
        {1: (0, 300)},
        lambda rows: [{**row, "value": b"mine"} if row["offset"] == 9 else row for row in rows],
    )
    assert run(["archive", "repair", str(tmp_path), "--bootstrap", archived.bootstrap]) == 1
    assert "not repaired: different record: " in capfd.readouterr().err
    assert len(open_archive(str(tmp_path)).table(archived.topic).iceberg.metadata.snapshots) == 1
