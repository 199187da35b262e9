"""The files of a manifest, and Spark's own list."""

import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from kbroker.pipeline.archive import manifest_files as files
from kbroker.pipeline.archive.manifest import ArchiveState, ManifestCommit, encode_commit
from kbroker.pipeline.archive.manifest_files import (
    SparkMetadataLog,
    decode,
    encode,
    encode_uri,
    expected_files,
    list_manifest,
    read_manifest_file,
)
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import MAX_READ_BYTES
from tests.sampling import third_of
from tests.unit.support.archives import make_file, new_data_path


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def test_only_commits_and_state_files_are_listed(storage: LocalStorage) -> None:
    for name in (
        "00000000000000000017.json",
        "00000000000000000018.json",
        "00000000000000000018.state.json",
        ".00000000000000000019.json.x.tmp",
        "x",
    ):
        storage.create(f"_manifest/{name}", b"")
    assert list_manifest(storage) == ({17, 18}, {18})


def test_a_large_file_is_read_if_its_checksum_is_correct(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_READ_BYTES", 100)
    monkeypatch.setattr(files, "_PIECE_BYTES", 7)
    data = encode_commit(3, ManifestCommit("append", 5, add=(make_file(new_data_path()),)), "00")
    storage.create("f", data)
    assert read_manifest_file(storage, "f") == data
    for damaged in (data[:200], data[:-1], data.replace(b'"append"', b'"Append"', 1)[1:], data + b" ", bytes(200)):
        storage.replace("f", damaged)
        with pytest.raises(PipelineError, match=rf"/f: damaged, .*\({len(damaged)} bytes, checksum mismatch\)"):
            read_manifest_file(storage, "f")


def test_a_huge_file_is_not_loaded(storage: LocalStorage, tmp_path: Path) -> None:
    storage.create("f", encode_commit(3, ManifestCommit("observe", 5), ""))
    os.truncate(tmp_path / "f", 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(PipelineError, match="damaged"):
            read_manifest_file(storage, "f")
        assert tracemalloc.get_traced_memory()[1] < MAX_READ_BYTES
    finally:
        tracemalloc.stop()


DEFAULT_INTERVALS = (1, 2, 3, 5, 7, 10, 11, 20, 100)  # of spark.sql.streaming.fileSink.log.compactInterval


class Crash(Exception):
    """The process was killed."""


class CrashingStorage(LocalStorage):
    """Makes `changes` changes, and raises Crash instead of every later one."""

    changes = 10**9

    def _change(self) -> None:
        self.changes -= 1
        if self.changes < 0:
            raise Crash

    def create(self, path: str, data: bytes) -> bool:
        self._change()
        return super().create(path, data)

    def delete(self, path: str, recursive: bool = False) -> None:
        self._change()
        super().delete(path, recursive)


@pytest.fixture
def crashing(tmp_path: Path, no_sync: None) -> CrashingStorage:
    return CrashingStorage(str(tmp_path / "an archive"))


def derive_interval(default: int, compacts: list[int]) -> int:
    """deriveCompactInterval of Spark."""
    if not compacts:
        return default
    if len(compacts) > 1:
        return compacts[-1] - compacts[-2]
    size = compacts[0] + 1
    if size <= default or default >= size // 2:
        return size
    return next((n for n in range(default, size // 2 + 1) if size % n == 0), size)


def read_as_spark(crashing: LocalStorage, default_interval: int = 10) -> list[str]:
    """Return the URIs that Spark reads, with repetitions."""
    names = [entry.name for entry in crashing.list_directory("_spark_metadata") if not entry.name.startswith(".")]
    compacts = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
    interval = derive_interval(default_interval, compacts)
    latest = max(int(name.removesuffix(".compact")) for name in names)
    uris = []
    for number in range(max(0, (latest + 1) // interval * interval - 1), latest + 1):
        name = f"{number}.compact" if (number + 1) % interval == 0 else str(number)
        header, *lines = crashing.read(f"_spark_metadata/{name}").decode().split("\n")
        assert header == "v1"
        uris += [json.loads(line)["path"] for line in lines]
    return sorted(uris)


def state_of(*paths: str) -> ArchiveState:
    return ArchiveState(files={path: make_file(path) for path in paths})


def uris_of(crashing: LocalStorage, state: ArchiveState) -> list[str]:
    return sorted(expected_files(crashing, state))


def test_lines_are_those_of_spark():
    text = encode([("file:///a%20b/topic=t/x.parquet", 12)], 34)
    assert text == (
        b'v1\n{"path":"file:///a%20b/topic=t/x.parquet","size":12,"isDir":false,"modificationTime":34,'
        b'"blockReplication":1,"blockSize":33554432,"action":"add"}'
    )
    assert list(decode(text.split(b"\n"), "f")) == [("file:///a%20b/topic=t/x.parquet", 12)]
    assert encode([], 34) == b"v1"
    assert list(decode([b"v1"], "f")) == []


@pytest.mark.parametrize("text", [b"", b"v2", b"v1\n", b"v1\n{}", b"v1\n[1]", b"v1\nnull", b"v1\n{", b"\xff"])
def test_a_damaged_file_is_reported(text):
    with pytest.raises(PipelineError, match=r"^f: damaged"):
        list(decode(text.split(b"\n"), "f"))


def test_locations_are_percent_encoded():
    assert encode_uri("file:///a b%/[c]é") == "file:///a%20b%25/%5Bc%5D%C3%A9"
    assert encode_uri("hdfs://node:8020/x=1") == "hdfs://node:8020/x=1"


def test_an_empty_archive_has_an_empty_log(crashing):
    SparkMetadataLog(crashing).update(ArchiveState)
    assert [read_as_spark(crashing, default) for default in DEFAULT_INTERVALS] == [[]] * len(DEFAULT_INTERVALS)


def test_additions_are_separate_files_until_the_next_compaction(crashing):
    log, paths = SparkMetadataLog(crashing), [new_data_path(number=number) for number in range(25)]
    for count in range(len(paths)):
        log.update(lambda count=count: state_of(*paths[: count + 1]))
    names = sorted(int(entry.name.removesuffix(".compact")) for entry in crashing.list_directory("_spark_metadata"))
    assert names == list(range(19, 44))
    assert crashing.read("_spark_metadata/43").count(b"\n") == 1
    assert crashing.read("_spark_metadata/39.compact").count(b"\n") == 21


def test_nothing_is_written_when_nothing_changed(crashing):
    state = state_of(new_data_path())
    SparkMetadataLog(crashing).update(lambda: state)
    before = crashing.list_directory("_spark_metadata")
    SparkMetadataLog(crashing).update(lambda: state)
    assert crashing.list_directory("_spark_metadata") == before


def test_a_removal_is_written_at_the_next_compaction(crashing):
    log, first, second = SparkMetadataLog(crashing), new_data_path(), new_data_path()
    log.update(lambda: state_of(first))
    log.update(lambda: state_of(first, second))
    log.update(lambda: state_of(second))
    assert [e.name for e in crashing.list_directory("_spark_metadata")] == [
        "19.compact",
        "20",
        "29.compact",
        "9.compact",
    ]
    assert read_as_spark(crashing) == uris_of(crashing, state_of(second))


def test_spark_reads_a_complete_state_after_any_crash(tmp_path, no_sync):
    """Files are appended and removed, with a crash at every change, for many of Spark's compact intervals."""
    for seed in third_of(range(60)):
        rng = random.Random(seed)
        crashing = CrashingStorage(str(tmp_path / f"archive {seed}"))
        logs = [SparkMetadataLog(crashing), SparkMetadataLog(crashing)]  # of two processes
        paths: list[str] = []
        allowed = [[]]  # the lists before and after the current change
        for step in range(40):
            if paths and rng.random() < 0.2:
                del paths[: rng.randint(1, len(paths))]
            paths += [new_data_path(f"{seed:012x}", 100 * step + n) for n in range(rng.randint(0, 2))]
            state = state_of(*paths)
            crashing.changes = rng.choice((0, 1, 2, 3, 10**9, 10**9))
            try:
                rng.choice(logs).update(lambda state=state: state)
                allowed = [uris_of(crashing, state)]
            except Crash:
                allowed.append(uris_of(crashing, state))
            if crashing.list_directory("_spark_metadata"):
                lists = [read_as_spark(crashing, default) for default in DEFAULT_INTERVALS]
                assert lists[0] in allowed, (seed, step)
                assert lists == [lists[0]] * len(DEFAULT_INTERVALS), (seed, step)


def test_the_log_of_a_moved_archive_is_rewritten(crashing, tmp_path):
    state = state_of(new_data_path(), new_data_path())
    SparkMetadataLog(crashing).update(lambda: state)
    Path(crashing.root).rename(tmp_path / "moved")
    moved = LocalStorage(str(tmp_path / "moved"))
    SparkMetadataLog(moved).update(lambda: state)
    assert read_as_spark(moved) == uris_of(moved, state)
    assert read_as_spark(moved)[0].startswith(f"file://{tmp_path}/moved/topic=t/")


@pytest.mark.parametrize(
    "damage",
    [
        {"20": None},
        {"20": b"v1\nx"},
        {"19.compact": b""},
        {"19.compact": None, "9.compact": None},
        {"9.compact": None},
        {"35.compact": b"v1"},
        {"7": b"v1", "70.compact": b"v1"},
        {"22": b"v1\n{}"},
    ],
)
def test_a_damaged_log_is_rewritten(crashing, damage):
    paths = [new_data_path() for _ in range(3)]
    for count in range(3):
        SparkMetadataLog(crashing).update(lambda count=count: state_of(*paths[: count + 1]))
    for name, data in damage.items():
        crashing.delete(f"_spark_metadata/{name}")
        if data is not None:
            crashing.create(f"_spark_metadata/{name}", data)
    expected = uris_of(crashing, state_of(*paths))
    SparkMetadataLog(crashing).update(lambda: state_of(*paths))
    assert [read_as_spark(crashing, default) for default in DEFAULT_INTERVALS] == [expected] * len(DEFAULT_INTERVALS)
    assert sorted(SparkMetadataLog(crashing).read()) == expected


def test_a_late_writer_does_not_list_an_older_state(crashing):
    """Two processes: the one with the older commit updates the log last."""
    first, second = new_data_path(), new_data_path()
    states = [state_of(first)]
    SparkMetadataLog(crashing).update(lambda: states[-1])

    def read_state_late() -> ArchiveState:
        if len(states) == 1:
            states.append(state_of(second))
            SparkMetadataLog(crashing).update(lambda: states[-1])
            return states[0]
        return states[-1]

    SparkMetadataLog(crashing).update(read_state_late)
    assert read_as_spark(crashing) == uris_of(crashing, state_of(second))
