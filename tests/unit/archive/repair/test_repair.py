"""Repair without a broker: what files still have is kept, what is gone becomes a gap, and then nothing is wrong."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import ROWS_PER_GROUP, write_rows
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.repair.repair import repair
from kbroker.archive.verification.findings import format_finding
from kbroker.archive.verification.verify import verify
from tests.unit.support.archive_damages import DAMAGES, Kinds, Target, path_of
from tests.unit.support.archive_tables import DAY_MS, append_rows, make_rows

Rows = dict[tuple[int, int], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repair") / "archive"
    table = create_archive(str(path), {}).create_table("t")
    for number in range(3):
        append_rows(table, 0, 30 * number, 30, DAY_MS * number)
    append_rows(table, 1, 100, 60, DAY_MS)
    shutil.copytree(path, path.with_name("copy"))
    return path


@pytest.fixture
def directory(original: Path) -> Path:
    shutil.rmtree(original, ignore_errors=True)
    shutil.copytree(original.with_name("copy"), original)
    return original


def read_rows(directory: Path) -> Rows:
    """Return all rows by partition and offset."""
    rows: Rows = {}
    for file in open_archive(str(directory)).table("t").files():
        for row in pq.ParquetFile(path_of(file.path)).read().to_pylist():
            key = row["partition"], row["offset"]
            assert key not in rows
            rows[key] = row
    return rows


def lost_offsets(directory: Path) -> set[tuple[int, int]]:
    state = open_archive(str(directory)).table("t").state
    return {(gap.partition, n) for gap in state.gaps if gap.reason == "lost" for n in range(gap.start, gap.end)}


def assert_repaired(directory: Path, before: Rows) -> None:
    """Each row is there and equal, or it is recorded as lost; and verify finds only files of others."""
    differences = [
        found for found in verify(str(directory)).findings if found.kind not in ("foreign file", "orphan", "lost")
    ]
    assert [format_finding(found) for found in differences] == []
    rows, lost = read_rows(directory), lost_offsets(directory)
    resumes = open_archive(str(directory)).table("t").state.resume_offsets()
    assert resumes in ({0: 90, 1: 160}, {0: 90})  # without the last commit, which the next run repeats
    assert {key for key in before if key not in rows and key[1] < resumes.get(key[0], 0)} <= lost
    assert all(before[key] == row for key, row in rows.items())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_repaired(directory: Path, damage: Callable[[Target], Kinds]) -> None:
    before = read_rows(directory)
    damage(Target(directory, "t"))
    planned = repair(str(directory), dry_run=True)
    again = repair(str(directory), dry_run=True)
    assert (planned[0].wanted, planned[0].replaced) == (again[0].wanted, again[0].replaced)
    repair(str(directory))
    assert_repaired(directory, before)
    [second] = repair(str(directory))
    assert not second.is_changed


def test_random_damages_are_repaired(directory: Path) -> None:
    chance = random.Random(5)
    copy = directory.with_name("copy")
    before = read_rows(directory)
    for _ in range(12):
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
        for path in chance.sample(sorted((directory / "topics/t/data").rglob("*.parquet")), 2):
            data = bytearray(path.read_bytes())
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        manifests = sorted((directory / "topics/t/metadata").glob("*.avro"))
        path = chance.choice(manifests)
        path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
        repair(str(directory))
        assert_repaired(directory, before)


def test_lost_manifests_cost_nothing_while_the_files_exist(directory: Path) -> None:
    before = read_rows(directory)
    target = Target(directory, "t")
    target.manifest_list.unlink()
    [done] = repair(str(directory))
    assert (done.rows, done.lost, read_rows(directory)) == (150, {}, before)


def test_undamaged_row_groups_of_a_damaged_file_are_kept(tmp_path: Path) -> None:
    table = create_archive(str(tmp_path), {}).create_table("t")
    count = 2 * ROWS_PER_GROUP
    (file,) = write_rows(table.write_target(), [make_rows(0, 0, count)])
    table.commit("append", table.state.with_covered([(0, OffsetRange(0, count))]), add=[file])
    path = path_of(file.path)
    page = pq.read_metadata(path).row_group(1).column(4).data_page_offset
    data = bytearray(path.read_bytes())
    data[page + 200] ^= 1
    path.write_bytes(data)
    [done] = repair(str(tmp_path))
    assert (done.rows, done.lost) == (ROWS_PER_GROUP, {0: (OffsetRange(ROWS_PER_GROUP, count),)})
    assert verify(str(tmp_path)).differences == []


def test_what_cannot_be_repaired(directory: Path) -> None:
    for path in (directory / "topics/t/metadata").glob("*.json"):
        path.write_text("{}")
    with pytest.raises(ArchiveError, match="cannot be read, and there is no older one that can"):
        repair(str(directory))
    with pytest.raises(ArchiveError, match="the archive has no topic x; it has t"):
        repair(str(directory), ["x"])
