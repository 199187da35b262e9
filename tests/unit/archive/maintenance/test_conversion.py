"""Archives of format 1 become tables, whatever happens meanwhile."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance import conversion
from kbroker.archive.maintenance.conversion import ConversionResult, convert
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.storage.local import LocalStorage
from kbroker.archive.topic_state import Gap, TopicInfo
from tests.unit.support.old_archives import write_old_archive


class KilledError(Exception):
    """Stands for a kill."""


def convert_directory(directory: Path) -> ConversionResult:
    return convert(
        LocalStorage(str(directory)),
        lambda committed_only: create_archive(str(directory), {"committed_only": committed_only}, converts=True),
    )


def check_converted(directory: Path) -> None:
    archive = open_archive(str(directory))
    assert archive.settings.committed_only
    assert archive.topics() == ["t", "u"]
    table = archive.table("t")
    state = table.state
    assert state.covered == {0: (OffsetRange(5, 25),), 1: (OffsetRange(0, 21),)}
    assert state.gaps == (Gap(0, 0, 5, "retention"),)
    assert state.topic == TopicInfo("abc", 2, {"retention.ms": "5"})
    assert (state.groups, state.groups_ms) == ({"g": {0: 7, 1: 9}}, 1004)
    assert state.resume_offsets() == {0: 25, 1: 21}
    rows = table.iceberg.scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert rows["offset"].to_pylist() == [*range(5, 25), *range(20)]
    assert rows["key"].to_pylist()[0] == b"key-5"
    assert rows["headers"].to_pylist()[0] == [{"key": "h", "value": b"x"}]
    assert [file.period for file in archive.table("u").files()] == [1]
    assert sorted(path.name for path in directory.iterdir()) == ["catalog.db", "topics"]
    assert table.foreign_change() is None


def test_everything_is_converted_and_the_old_files_are_gone(tmp_path: Path) -> None:
    write_old_archive(tmp_path)
    message = "of an earlier format; convert it once with: kbroker archive convert"
    with pytest.raises(ArchiveError, match=message):
        open_archive(str(tmp_path))
    with pytest.raises(ArchiveError, match=message):
        create_archive(str(tmp_path), {})
    result = convert_directory(tmp_path)
    assert result == ConversionResult(2, 43, 2, 3)
    check_converted(tmp_path)
    with pytest.raises(ArchiveError, match="is not an archive of the old format"):
        convert_directory(tmp_path)


def test_a_conversion_that_was_killed_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before each commit, and before each deletion of a file or directory."""
    monkeypatch.setattr(conversion, "_ROUND_BYTES", 1)
    template = tmp_path / "template"
    write_old_archive(template)
    steps = 0
    while True:
        directory = tmp_path / f"archive-{steps}"
        shutil.copytree(template, directory)
        remaining = steps

        def step(function: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining == -1:
                raise KilledError
            return function(*arguments, **options)

        with monkeypatch.context() as patch:
            for kind, name in ((ArchiveTable, "commit"), (LocalStorage, "delete"), (LocalStorage, "create")):
                function = getattr(kind, name)
                patch.setattr(kind, name, lambda *a, _function=function, **o: step(_function, *a, **o))
            try:
                convert_directory(directory)
            except KilledError:
                patch.undo()
                with pytest.raises(ArchiveError, match="earlier format"):
                    open_archive(str(directory))
                convert_directory(directory)
        check_converted(directory)
        if remaining >= 0:
            break
        steps += 3
    assert steps > 10


def test_damaged_files_are_kept_and_their_offsets_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_old_archive(tmp_path)
    path = tmp_path / "topic=u/date=1970-01-02/cccccccccccc-00000.parquet"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    result = convert_directory(tmp_path)
    relative = str(path.relative_to(tmp_path))
    assert result.damaged == {relative: "its bytes are not those that were committed"}
    assert path.exists()
    state = open_archive(str(tmp_path)).table("u").state
    assert (state.gaps, state.covered) == ((Gap(0, 0, 3, "lost"),), {0: (OffsetRange(0, 3),)})


@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_damaged_manifest_changes_nothing(tmp_path: Path, number: int) -> None:
    write_old_archive(tmp_path)
    for path in (tmp_path / "_manifest").glob("*.state.json"):
        path.unlink()
    path = tmp_path / "_manifest" / f"{number:020d}.json"
    path.write_bytes(path.read_bytes().replace(b'"time_ms":1', b'"time_ms":2'))
    with pytest.raises(ArchiveError, match=r"damaged, or not a file of an archive's manifest \(checksum mismatch\)"):
        convert_directory(tmp_path)
    path.unlink()
    with pytest.raises(ArchiveError):
        convert_directory(tmp_path)
    assert (tmp_path / "_checkpoint").exists()
    assert not (tmp_path / "catalog.db").exists()
