"""Dead letters are decoded again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kbroker.archive.archive import Archive, ArchiveTable, ConflictError
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.decoding.dead_letters import (
    create_dead_letters,
    dead_letter_topics,
    find_dead_letters,
    make_dead_rows,
    only_new,
    with_dead_letters,
)
from kbroker.archive.decoding.decoder import Decoder
from kbroker.archive.decoding.retry import RetrySummary, retry_dead_letters
from kbroker.archive.decoding.settings import DecodeSettings, Decoding, SchemaText
from kbroker.archive.decoding.topic_decoding import TopicDecoding
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.compaction import MergeResult, compact_topic
from kbroker.archive.maintenance.compaction_plan import plan_merges
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap
from tests.unit.support.archive_tables import make_rows

JSON = DecodeSettings(value=Decoding("json"))


def _append(archive: Archive, values: Sequence[bytes], first: int = 0, settings: DecodeSettings | None = None) -> None:
    """Archive values, decoded, as a batch of `archive run`."""
    table, dead = archive.create_table("t"), create_dead_letters(archive, "t")
    rows = make_rows(first=first, count=len(values))
    rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    decoding = TopicDecoding(table, settings)
    decoded = Decoder(decoding.task()).decode(rows, 1000)
    if decoded.missing:
        decoding.learn(decoded.missing)
        decoded = Decoder(decoding.task()).decode(rows, 1000)
    if decoded.dead is not None:
        files = write_rows(dead.write_target(), [only_new(decoded.dead, dead.state.resume_offsets())])
        dead.commit("append", with_dead_letters(dead.state, files), files)
    state = table.state.with_covered([(0, OffsetRange(first, first + len(values)))])
    table.commit("append", state, write_rows(table.write_target(), [decoded.rows]))


def _values(archive: Archive, column: str = "decoded_value") -> dict[int, Any]:
    """Return the values of a column by offset."""
    rows = open_archive(archive.location).table("t").iceberg.scan().to_arrow()
    assert len(set(rows["offset"].to_pylist())) == rows.num_rows
    return dict(sorted(zip(rows["offset"].to_pylist(), rows[column].to_pylist(), strict=True)))


def _dead(archive: Archive) -> dict[int, str]:
    """Return the reasons of dead letters by offset."""
    table = find_dead_letters(open_archive(archive.location), "t")
    assert table is not None
    rows = table.iceberg.scan().to_arrow()
    return dict(sorted(zip(rows["offset"].to_pylist(), rows["reason"].to_pylist(), strict=True)))


def test_fields_that_are_added_to_an_inferred_schema(tmp_path: Path) -> None:
    """Rows get their columns, others keep theirs; what is still wrong remains, with its reason."""
    archive = create_archive(str(tmp_path), {})
    assert dead_letter_topics(archive) == []
    _append(archive, [b'{"a": 1}', b"{"], settings=JSON)
    _append(archive, [b'{"b": [2]}', b'{"a": "x", "b": [3]}', b'{"a": 4}'], first=2)
    _append(archive, [b'{"b": [5]}'], first=5)
    assert dead_letter_topics(archive) == ["t"]
    assert list(_dead(archive)) == [1, 2, 3, 5]
    assert retry_dead_letters(archive, "t", 2000) == RetrySummary(0, 4)
    assert retry_dead_letters(archive, "t", 2000, infer=True) == RetrySummary(2, 2)
    assert _values(archive) == {
        0: {"a": 1, "b": None},
        1: None,
        2: {"a": None, "b": [2]},
        3: None,
        4: {"a": 4, "b": None},
        5: {"a": None, "b": [5]},
    }
    assert list(_dead(archive)) == [1, 3]
    assert _dead(archive)[3] == 'the value is not decoded: a: expected an integer of 64 bits, not "x"'
    # Later records have the fields, too, and dead letters are not written twice.
    _append(archive, [b'{"b": [6]}'], first=6)
    assert _values(archive)[6] == {"a": None, "b": [6]}
    assert list(_dead(archive)) == [1, 3]


def test_a_mended_schema_file(tmp_path: Path) -> None:
    """Its settings are those of the topic from then on."""
    archive = create_archive(str(tmp_path), {})

    def settings(kind: str) -> DecodeSettings:
        return DecodeSettings(value=Decoding("json", schema=SchemaText((json.dumps({"type": kind}),))))

    _append(archive, [b"1", b'"x"'], settings=settings("array"))
    with pytest.raises(ArchiveError, match="the schema of the value cannot be used: the column is list"):
        retry_dead_letters(archive, "t", 2000, settings("integer"))
    other = create_archive(str(tmp_path / "other"), {})
    _append(other, [b"x", b"1"], settings=DecodeSettings(value=Decoding("string"), key=Decoding("json")))
    assert retry_dead_letters(other, "t", 2000, DecodeSettings(value=Decoding("string"))) == RetrySummary(2, 0)
    assert _dead(other) == {}
    assert _values(other) == {0: "x", 1: "1"}
    with pytest.raises(ArchiveError, match="t is not decoded"):
        retry_dead_letters(other, "t", 2000, DecodeSettings())


def test_a_kill_between_the_two_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are there once, with and without the bytes of values."""
    commit = ArchiveTable.commit
    for keep_raw in (True, False):
        archive = create_archive(str(tmp_path / str(keep_raw)), {})
        _append(archive, [b'{"a": 1}'], settings=replace(JSON, keep_raw=keep_raw))
        _append(archive, [b'{"b": 2}', b"null"], first=1)
        assert list(_values(archive)) == ([0, 1, 2] if keep_raw else [0, 2])

        def kill(self: ArchiveTable, kind: str, *arguments: Any) -> Any:
            if "dead_letters" in self.location:
                raise KeyboardInterrupt
            return commit(self, kind, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(ArchiveTable, "commit", kill)
            with pytest.raises(KeyboardInterrupt):
                retry_dead_letters(archive, "t", 2000, infer=True)
        expected = {0: {"a": 1, "b": None}, 1: {"a": None, "b": 2}, 2: None}
        assert _values(archive) == expected
        assert retry_dead_letters(archive, "t", 2000) == RetrySummary(1, 0)
        assert _values(archive) == expected
        assert _values(archive, "value")[1] == (b'{"b": 2}' if keep_raw else None)


def test_erased_rows_do_not_come_back(tmp_path: Path) -> None:
    """A gap says that the archive does not have them anymore."""
    archive = create_archive(str(tmp_path), {})
    _append(archive, [b'{"a": 1}'], settings=replace(JSON, keep_raw=False))
    _append(archive, [b'{"b": 2}', b'{"b": 3}'], first=1)
    table = archive.table("t")
    table.commit("erase", replace(table.state, gaps=(Gap(0, 1, 2, "erased"),)))
    assert retry_dead_letters(archive, "t", 2000, infer=True).remaining == 0
    assert list(_values(archive)) == [0, 2]


def test_other_dead_letters_are_kept(tmp_path: Path) -> None:
    """Those that are not about decoding; and a commit of another process is no failure."""
    archive = create_archive(str(tmp_path), {})
    _append(archive, [b'{"a": 1}'], settings=JSON)
    _append(archive, [b'{"b": 2}'], first=1)
    dead = find_dead_letters(archive, "t")
    assert dead is not None
    poison = write_rows(dead.write_target(), [make_dead_rows(make_rows(first=9), ["its timestamp is invalid"], 1)])
    dead.commit("append", with_dead_letters(dead.state, poison), poison)
    conflicts = [ConflictError("first"), ConflictError("second")]
    commit = ArchiveTable.commit

    def conflict(self: ArchiveTable, kind: str, *arguments: Any) -> Any:
        if conflicts and kind == "retry":
            raise conflicts.pop()
        return commit(self, kind, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", conflict)
        assert retry_dead_letters(archive, "t", 2000, infer=True) == RetrySummary(1, 0)
    assert not conflicts
    assert _dead(archive) == {9: "its timestamp is invalid"}
    assert _values(archive)[1] == {"a": None, "b": 2}


def test_files_of_older_schemas_can_be_merged(tmp_path: Path) -> None:
    """Fields that they do not have are null in the merged file."""
    archive = create_archive(str(tmp_path), {})
    _append(archive, [b'{"a": {"x": 1}}'], settings=JSON)
    _append(archive, [b'{"a": {"y": [2]}, "b": 3}'], first=1)
    assert retry_dead_letters(archive, "t", 2000, infer=True) == RetrySummary(1, 0)
    expected = _values(archive)
    assert expected == {0: {"a": {"x": 1, "y": None}, "b": None}, 1: {"a": {"x": None, "y": [2]}, "b": 3}}
    table = archive.table("t")
    compact_topic(table, plan_merges(table.files()), MergeResult())
    assert len(archive.table("t").files()) == 1
    assert _values(archive) == expected
