"""The manifest's files: what is written is read; what is damaged, foreign or too new is refused by name."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest.model import (
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    ManifestCommit,
    PartitionStats,
    TopicInfo,
    apply_commits,
)
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import MAX_READ_BYTES
from tests.unit.support.archives import file_of, new_path

LONGS = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
PARTS = st.builds(PartitionStats, OFFSETS, OFFSETS, OFFSETS, OFFSETS, OFFSETS, LONGS, LONGS, st.integers(0, 2**64 - 1))
GROUPS = st.dictionaries(st.text(), st.dictionaries(TOPICS, st.dictionaries(OFFSETS, OFFSETS)))
INFOS = st.builds(TopicInfo, st.text(), OFFSETS, st.dictionaries(st.text(), st.text()))


@st.composite
def files(draw: st.DrawFn) -> DataFile:
    topic, date = draw(TOPICS), draw(st.dates()).isoformat()
    path = f"topic={topic}/date={date}/{draw(st.from_regex('[0-9a-f]{12}-[0-9]{5}', fullmatch=True))}.parquet"
    return DataFile(path, topic, date, draw(OFFSETS), "ab" * 32, tuple(draw(st.lists(PARTS, max_size=3))))


COMMITS = st.builds(
    ManifestCommit,
    kind=st.sampled_from(manifest.KINDS),
    time_ms=LONGS,
    add=st.lists(files(), max_size=2).map(tuple),
    remove=st.lists(st.text(), max_size=2).map(tuple),
    covered=st.lists(st.builds(CoveredRange, TOPICS, OFFSETS, OFFSETS, OFFSETS), max_size=2).map(tuple),
    gaps=st.lists(st.builds(Gap, TOPICS, OFFSETS, OFFSETS, OFFSETS, st.text()), max_size=2).map(tuple),
    query=st.none() | st.tuples(st.text(), OFFSETS),
    topics=st.none() | st.dictionaries(TOPICS, INFOS, max_size=2),
    groups=st.none() | GROUPS,
    settings=st.none() | st.dictionaries(st.text(), st.text() | st.booleans() | st.integers(), max_size=2),
)


@given(COMMITS, OFFSETS, st.text("0123456789abcdef"))
def test_a_commit_is_read_as_it_was_written(commit, number, previous):
    data = manifest.encode_commit(number, commit, previous)
    assert data.count(b"\n") == 1
    read, before, digest = manifest.decode_commit(data, number, "f")
    assert (read, before) == (commit, previous)
    assert manifest.encode_commit(number, read, previous) == data
    assert json.loads(data)["sha256"] == digest


def a_state() -> ArchiveState:
    spans = (CoveredRange("t", 0, 0, 10), CoveredRange("t", 0, 20, 30), CoveredRange("t", 1, 5, 6))
    first = ManifestCommit(
        "append",
        7,
        add=(file_of(new_path(), partitions=2), file_of(new_path(topic="123"))),
        covered=spans,
        gaps=(Gap("t", 0, 10, 20, "retention"),),
        query=("q", 3),
        topics={"t": TopicInfo("id", 2, {"a": "b"})},
        groups={"g": {"t": {0: 4}}},
        settings={"committed_only": True},
    )
    return apply_commits(ArchiveState(), [(41, first), (42, ManifestCommit("observe", 8))])


def test_a_state_is_read_as_it_was_written():
    state = a_state()
    assert manifest.decode_state(manifest.encode_state(state, "abc"), 42, "f")[:2] == (state, "abc")


def test_a_commit_is_a_document_that_speaks_for_itself():
    commit = ManifestCommit("append", 5, add=(file_of("topic=t/date=2024-02-29/abc-0.parquet"),), query=("q", 1))
    document = json.loads(manifest.encode_commit(3, commit, "00"))
    part = {"partition": 0, "first": 0, "last": 0, "rows": 1, "bytes": 10, "from_ms": 1000, "to_ms": 2000}
    file = {"path": "topic=t/date=2024-02-29/abc-0.parquet", "size": 37, "sha256": "0" * 64}
    sha256 = document.pop("sha256")
    assert len(sha256) == 64
    assert document == {
        "version": 1,
        "number": 3,
        "kind": "append",
        "time_ms": 5,
        "add": [file | {"parts": [part | {"checksum": "8000000000000000"}]}],
        "query": {"id": "q", "batch": 1},
        "previous": "00",
    }


def damaged(data: bytes) -> "list[bytes]":
    """Each byte changed, each beginning of it, and other things."""
    changed = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    return [
        *changed,
        *(data[:i] for i in range(len(data))),
        data + b" ",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b"[" * 100_000,
    ]


def test_a_damaged_commit_is_told_by_its_name():
    data = manifest.encode_commit(3, ManifestCommit("append", 5, add=(file_of(new_path()),), query=("q", 1)), "00")
    for bad in damaged(data):
        with pytest.raises(PipelineError, match=r"^the/file: "):
            manifest.decode_commit(bad, 3, "the/file")


def test_a_damaged_state_is_told_by_its_name():
    for bad in damaged(manifest.encode_state(a_state(), "00")):
        with pytest.raises(PipelineError, match=r"^the/file: "):
            manifest.decode_state(bad, 42, "the/file")


def test_a_large_file_is_read_if_its_checksum_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_READ_BYTES", 100)
    monkeypatch.setattr(manifest, "_PIECE_BYTES", 7)
    storage = LocalStorage(str(tmp_path))
    data = manifest.encode_state(a_state(), "00")
    storage.create("f", data)
    assert manifest.read(storage, "f") == data
    for bad in (data[:200], data[:-1], data.replace(b'"append"', b'"Append"', 1)[1:], data + b" ", bytes(200)):
        storage.replace("f", bad)
        with pytest.raises(PipelineError, match=rf"/f: damaged, .*\({len(bad)} bytes, and its checksum is another\)"):
            manifest.read(storage, "f")


def test_a_huge_file_takes_no_memory(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create("f", manifest.encode_commit(3, ManifestCommit("observe", 5), ""))
    os.truncate(tmp_path / "f", 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(PipelineError, match="damaged"):
            manifest.read(storage, "f")
        assert tracemalloc.get_traced_memory()[1] < MAX_READ_BYTES
    finally:
        tracemalloc.stop()


def test_a_file_in_the_place_of_another_is_refused():
    commit = manifest.encode_commit(3, ManifestCommit("observe", 5), "")
    with pytest.raises(PipelineError, match="in the place of commit 4"):
        manifest.decode_commit(commit, 4, "f")
    with pytest.raises(PipelineError, match="in the place of state 3"):
        manifest.decode_state(commit, 3, "f")
    with pytest.raises(PipelineError, match="in the place of commit 42"):
        manifest.decode_commit(manifest.encode_state(a_state(), ""), 42, "f")


def test_a_newer_format_is_told():
    data = manifest.encode_commit(3, ManifestCommit("observe", 5), "").replace(b'"version":1', b'"version":2')
    with pytest.raises(PipelineError, match="f: format version 2, written by a newer kbroker"):
        manifest.decode_commit(data, 3, "f")


@pytest.mark.parametrize(
    "path",
    [
        "../x.parquet",
        "topic=t/x.parquet",
        "topic=t/date=2024-02-29/../../x.parquet",
        "topic=t/date=2024-02-29/_x.parquet",
        "topic=/date=2024-02-29/x.parquet",
        "topic=__HIVE_DEFAULT_PARTITION__/date=2024-02-29/x.parquet",
        "topic=t/date=__HIVE_DEFAULT_PARTITION__/x.parquet",
        "/topic=t/date=2024-02-29/x.parquet",
    ],
)
def test_a_path_outside_of_the_archive_is_refused(path):
    data = manifest.encode_commit(3, ManifestCommit("append", 5, add=(DataFile(path, "t", "d", 1, "0" * 64, ()),)), "")
    with pytest.raises(PipelineError, match="f: damaged"):
        manifest.decode_commit(data, 3, "f")


def test_names_of_files():
    assert manifest.commit_path(17) == "_manifest/00000000000000000017.json"
    assert manifest.state_path(100) == "_manifest/00000000000000000100.state.json"
    assert manifest.parsed_name("00000000000000000017.json") == (17, False)
    assert manifest.parsed_name("00000000000000000100.state.json") == (100, True)
    for name in ("17.json", ".00000000000000000017.json.x.tmp", "00000000000000000017.jsonx", "x"):
        assert manifest.parsed_name(name) is None
    assert manifest.topic_and_date("topic=a.b-c_1/date=2024-02-29/x.parquet") == ("a.b-c_1", "2024-02-29")
