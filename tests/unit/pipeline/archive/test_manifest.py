"""Commits and states as JSON: what is encoded is decoded, and damaged, misplaced and newer files are rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.archive.manifest import (
    KINDS,
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    ManifestCommit,
    PartitionStats,
    QueryBatch,
    TopicInfo,
    apply_commits,
    decode_commit,
    decode_state,
    encode_commit,
    encode_state,
)
from kbroker.pipeline.errors import PipelineError
from tests.unit.support.archives import make_file, new_data_path

LONGS = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
STATS = st.builds(PartitionStats, OFFSETS, OFFSETS, OFFSETS, OFFSETS, OFFSETS, LONGS, LONGS, st.integers(0, 2**64 - 1))
GROUPS = st.dictionaries(st.text(), st.dictionaries(TOPICS, st.dictionaries(OFFSETS, OFFSETS)))
INFOS = st.builds(TopicInfo, st.text(), OFFSETS, st.dictionaries(st.text(), st.text()))


@st.composite
def files(draw: st.DrawFn) -> DataFile:
    topic, date = draw(TOPICS), draw(st.dates()).isoformat()
    path = f"topic={topic}/date={date}/{draw(st.from_regex('[0-9a-f]{12}-[0-9]{5}', fullmatch=True))}.parquet"
    return DataFile(path, topic, date, draw(OFFSETS), "ab" * 32, tuple(draw(st.lists(STATS, max_size=3))))


COMMITS = st.builds(
    ManifestCommit,
    kind=st.sampled_from(KINDS),
    time_ms=LONGS,
    add=st.lists(files(), max_size=2).map(tuple),
    remove=st.lists(st.text(), max_size=2).map(tuple),
    covered=st.lists(st.builds(CoveredRange, TOPICS, OFFSETS, OFFSETS, OFFSETS), max_size=2).map(tuple),
    gaps=st.lists(st.builds(Gap, TOPICS, OFFSETS, OFFSETS, OFFSETS, st.text()), max_size=2).map(tuple),
    query=st.none() | st.builds(QueryBatch, st.text(), OFFSETS),
    topics=st.none() | st.dictionaries(TOPICS, INFOS, max_size=2),
    groups=st.none() | GROUPS,
    settings=st.none() | st.dictionaries(st.text(), st.text() | st.booleans() | st.integers(), max_size=2),
)


@given(COMMITS, OFFSETS, st.text("0123456789abcdef"))
def test_a_commit_is_decoded_as_it_was_encoded(commit, number, previous):
    data = encode_commit(number, commit, previous)
    assert data.count(b"\n") == 1
    decoded, previous_digest, digest = decode_commit(data, number, "f")
    assert (decoded, previous_digest) == (commit, previous)
    assert encode_commit(number, decoded, previous) == data
    assert json.loads(data)["sha256"] == digest


def a_state() -> ArchiveState:
    covered = (CoveredRange("t", 0, 0, 10), CoveredRange("t", 0, 20, 30), CoveredRange("t", 1, 5, 6))
    first = ManifestCommit(
        "append",
        7,
        add=(make_file(new_data_path(), partitions=2), make_file(new_data_path(topic="123"))),
        covered=covered,
        gaps=(Gap("t", 0, 10, 20, "retention"),),
        query=QueryBatch("q", 3),
        topics={"t": TopicInfo("id", 2, {"a": "b"})},
        groups={"g": {"t": {0: 4}}},
        settings={"committed_only": True},
    )
    return apply_commits(ArchiveState(), [(41, first), (42, ManifestCommit("observe", 8))])


def test_a_state_is_decoded_as_it_was_encoded():
    state = a_state()
    assert decode_state(encode_state(state, "abc"), 42, "f")[:2] == (state, "abc")


def test_the_document_of_a_commit():
    commit = ManifestCommit(
        "append", 5, add=(make_file("topic=t/date=2024-02-29/abc-0.parquet"),), query=QueryBatch("q", 1)
    )
    document = json.loads(encode_commit(3, commit, "00"))
    stats = {"partition": 0, "first": 0, "last": 0, "rows": 1, "bytes": 10, "from_ms": 1000, "to_ms": 2000}
    file = {"path": "topic=t/date=2024-02-29/abc-0.parquet", "size": 37, "sha256": "0" * 64}
    sha256 = document.pop("sha256")
    assert len(sha256) == 64
    assert document == {
        "version": 1,
        "number": 3,
        "kind": "append",
        "time_ms": 5,
        "add": [file | {"parts": [stats | {"checksum": "8000000000000000"}]}],
        "query": {"id": "q", "batch": 1},
        "previous": "00",
    }


def damage(data: bytes) -> list[bytes]:
    """Return the data with each byte changed and with each length, and other JSON."""
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


def test_a_damaged_commit_is_reported_with_its_location():
    data = encode_commit(
        3, ManifestCommit("append", 5, add=(make_file(new_data_path()),), query=QueryBatch("q", 1)), "00"
    )
    for bad in damage(data):
        with pytest.raises(PipelineError, match=r"^the/file: "):
            decode_commit(bad, 3, "the/file")


def test_a_damaged_state_is_reported_with_its_location():
    for bad in damage(encode_state(a_state(), "00")):
        with pytest.raises(PipelineError, match=r"^the/file: "):
            decode_state(bad, 42, "the/file")


def test_a_file_with_the_number_or_kind_of_another_is_rejected():
    commit = encode_commit(3, ManifestCommit("observe", 5), "")
    with pytest.raises(PipelineError, match="instead of commit 4"):
        decode_commit(commit, 4, "f")
    with pytest.raises(PipelineError, match="instead of state 3"):
        decode_state(commit, 3, "f")
    with pytest.raises(PipelineError, match="instead of commit 42"):
        decode_commit(encode_state(a_state(), ""), 42, "f")


def test_a_newer_format_version_is_rejected():
    data = encode_commit(3, ManifestCommit("observe", 5), "").replace(b'"version":1', b'"version":2')
    with pytest.raises(PipelineError, match="f: format version 2 was written by a newer version of kbroker"):
        decode_commit(data, 3, "f")


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
def test_a_path_outside_the_archive_is_rejected(path):
    data = encode_commit(3, ManifestCommit("append", 5, add=(DataFile(path, "t", "d", 1, "0" * 64, ()),)), "")
    with pytest.raises(PipelineError, match="f: damaged"):
        decode_commit(data, 3, "f")
