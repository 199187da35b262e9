"""Each kind of damage is found; undamaged archives have no finding; nothing hangs."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap
from kbroker.archive.verification.findings import VerificationReport, VerificationScope, format_finding
from kbroker.archive.verification.verify import verify
from tests.unit.support.archive_damages import DAMAGES, Kinds, Target
from tests.unit.support.archive_tables import DAY_MS, append_rows, make_rows

ROWS = 150


def fill(directory: Path) -> ArchiveTable:
    """Create a table with two partitions, three days and some commits."""
    table = create_archive(str(directory), {}).create_table("t")
    for number in range(3):
        append_rows(table, 0, 30 * number, 30, DAY_MS * number)
    append_rows(table, 1, 100, 60, DAY_MS)
    return table


@pytest.fixture
def directory(tmp_path: Path, archive: Path) -> Path:
    """An archive that a test may damage: at the place at which it was written, because metadata has absolute paths."""
    shutil.rmtree(archive, ignore_errors=True)
    shutil.copytree(archive.with_name("copy"), archive)
    return archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damages") / "archive"
    fill(path)
    shutil.copytree(path, path.with_name("copy"))
    return path


def text_of(report: VerificationReport) -> str:
    return "\n".join(map(format_finding, report.findings))


def test_an_undamaged_archive_has_no_finding(directory: Path) -> None:
    report = verify(str(directory))
    assert (text_of(report), report.rows, report.files, report.commits) == ("", ROWS, 4, {"t": 4})


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found(directory: Path, damage: Callable[[Target], Kinds]) -> None:
    kinds = damage(Target(directory, "t"))
    report = verify(str(directory))
    found = {finding.kind for finding in report.differences}
    assert kinds <= found, text_of(report)


def test_random_damage_is_found(directory: Path) -> None:
    """A flipped bit anywhere in a data file, and in manifests unless it changes nothing that is read."""
    chance = random.Random(20)
    paths = sorted(path for path in (directory / "topics/t/data").rglob("*.parquet"))
    for _ in range(40):
        path = chance.choice(paths)
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        original, _ = path.read_bytes(), path.write_bytes(data)
        assert {finding.kind for finding in verify(str(directory)).differences} >= {"changed file"}
        path.write_bytes(original)


def test_findings_name_file_partition_and_offsets(directory: Path) -> None:
    target = Target(directory, "t")
    target.path.unlink()
    [finding] = verify(str(directory)).differences
    assert (finding.topic, finding.partition, finding.offsets) == ("t", 0, (OffsetRange(30, 60),))
    assert finding.file == str(target.path.relative_to(directory))
    scope = VerificationScope(offsets=OffsetRange(0, 30))
    assert verify(str(directory), scope).files == 1
    assert verify(str(directory), VerificationScope(dates=frozenset({"1970-01-03"}))).files == 1
    assert verify(str(directory), VerificationScope(times_ms=(0, 100))).files == 1
    with pytest.raises(ArchiveError, match="the archive has no topic x; it has t"):
        verify(str(directory), VerificationScope(topics=frozenset({"x"})))


def test_gaps_are_notes_and_rows_at_erased_offsets_are_differences(tmp_path: Path) -> None:
    table = fill(tmp_path)
    state = replace(table.state, gaps=(Gap(0, 3, 5, "erased"), Gap(0, 6, 7, "lost"), Gap(1, 50, 100, "retention")))
    table.commit("erase", state)
    report = verify(str(tmp_path))
    assert [(note.kind, note.offsets) for note in report.notes] == [
        ("erased", (OffsetRange(3, 5),)),
        ("lost", (OffsetRange(6, 7),)),
    ]
    assert [(found.kind, found.offsets) for found in report.differences] == [("uncovered", (OffsetRange(3, 5),))]


def test_files_of_a_writer_are_a_note(tmp_path: Path) -> None:
    table = fill(tmp_path)
    write_rows(table.write_target(), [make_rows(0, 500, 3)])
    [finding] = verify(str(tmp_path)).findings
    assert (finding.kind, finding.is_difference) == ("orphan", False)


def test_files_that_are_replaced_meanwhile_are_no_difference(tmp_path: Path) -> None:
    """The verification starts again with the new state."""
    fill(tmp_path)
    steps: list[str] = []

    def compact(text: str) -> None:
        steps.append(text)
        if len(steps) == 1:
            other = open_archive(str(tmp_path)).table("t")
            old = [file for file in other.files() if file.partition == 1]
            other.commit("compact", other.state, write_rows(other.write_target(), [make_rows(1, 100, 60, DAY_MS)]), old)
            Path(old[0].path.removeprefix("file://")).unlink()

    report = verify(str(tmp_path), progress=compact)
    assert (report.differences, report.commits, report.rows) == ([], {"t": 5}, ROWS)
    assert any("starting again" in step for step in steps)


def test_rows_in_any_order_and_overlapping_files(tmp_path: Path) -> None:
    """Files of several days have the same range of offsets; no record is doubled."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    parts = [make_rows(0, offset, 1, DAY_MS * (offset % 3)) for offset in range(300)]
    files = write_rows(table.write_target(), reversed(parts))
    table.commit("append", table.state.with_covered([(0, OffsetRange(0, 300))]), add=files)
    report = verify(str(tmp_path))
    assert {finding.kind for finding in report.findings} == {"unordered"}
    assert (report.differences, report.rows) == ([], 300)
