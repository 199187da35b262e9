"""The view for Spark's own reader, against that reader's rules as Spark 4.0 has them.

The rules are those of CompactibleFileStreamLog: `deriveCompactInterval`, `isCompactionBatch`, `getAllValidBatches`.
That Spark itself sees the same is in tests/compat/spark/pipeline/test_archive_store.py.
"""

import json
import random
from pathlib import Path

import pytest

from kbroker.pipeline.archive.manifest import spark_view
from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.archive.manifest.spark_view import SparkView, encoded_uri, wanted_files
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import file_of, new_path

DEFAULTS = (1, 2, 3, 5, 7, 10, 11, 20, 100)  # of spark.sql.streaming.fileSink.log.compactInterval


class Crash(Exception):
    """The process is gone."""


class Crashing(LocalStorage):
    """Does so many changes and then no more."""

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
def storage(tmp_path: Path, no_sync: None) -> Crashing:
    return Crashing(str(tmp_path / "an archive"))


def interval(default: int, compacts: list[int]) -> int:
    if not compacts:
        return default
    if len(compacts) > 1:
        return compacts[-1] - compacts[-2]
    size = compacts[0] + 1
    if size <= default or default >= size // 2:
        return size
    return next((n for n in range(default, size // 2 + 1) if size % n == 0), size)


def seen_by_spark(storage: LocalStorage, default: int = 10) -> list[str]:
    """The URIs that Spark reads, one for each time."""
    names = [entry.name for entry in storage.list_directory("_spark_metadata") if not entry.name.startswith(".")]
    compacts = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
    every = interval(default, compacts)
    latest = max(int(name.removesuffix(".compact")) for name in names)
    seen = []
    for number in range(max(0, (latest + 1) // every * every - 1), latest + 1):
        name = f"{number}.compact" if (number + 1) % every == 0 else str(number)
        header, *lines = storage.read(f"_spark_metadata/{name}").decode().split("\n")
        assert header == "v1"
        seen += [json.loads(line)["path"] for line in lines]
    return sorted(seen)


def state_of(*paths: str) -> ArchiveState:
    return ArchiveState(files={path: file_of(path) for path in paths})


def uris(storage: LocalStorage, state: ArchiveState) -> list[str]:
    return sorted(wanted_files(storage, state))


def test_a_line_is_as_spark_writes_it():
    text = spark_view.encode([("file:///a%20b/topic=t/x.parquet", 12)], 34)
    assert text == (
        b'v1\n{"path":"file:///a%20b/topic=t/x.parquet","size":12,"isDir":false,"modificationTime":34,'
        b'"blockReplication":1,"blockSize":33554432,"action":"add"}'
    )
    assert list(spark_view.decode(text.split(b"\n"), "f")) == [("file:///a%20b/topic=t/x.parquet", 12)]
    assert spark_view.encode([], 34) == b"v1"
    assert list(spark_view.decode([b"v1"], "f")) == []


@pytest.mark.parametrize("text", [b"", b"v2", b"v1\n", b"v1\n{}", b"v1\n[1]", b"v1\nnull", b"v1\n{", b"\xff"])
def test_a_damaged_file_is_told(text):
    with pytest.raises(PipelineError, match=r"^f: damaged"):
        list(spark_view.decode(text.split(b"\n"), "f"))


def test_locations_are_percent_encoded():
    assert encoded_uri("file:///a b%/[c]é") == "file:///a%20b%25/%5Bc%5D%C3%A9"
    assert encoded_uri("hdfs://node:8020/x=1") == "hdfs://node:8020/x=1"


def test_an_empty_archive_is_an_empty_view(storage):
    SparkView(storage).bring_up_to_date(ArchiveState)
    assert [seen_by_spark(storage, default) for default in DEFAULTS] == [[]] * len(DEFAULTS)


def test_what_was_added_is_a_file_of_its_own_until_the_next_compact(storage):
    view, paths = SparkView(storage), [new_path(number=number) for number in range(25)]
    for count in range(len(paths)):
        view.bring_up_to_date(lambda count=count: state_of(*paths[: count + 1]))
    names = sorted(int(entry.name.removesuffix(".compact")) for entry in storage.list_directory("_spark_metadata"))
    assert names == list(range(19, 44))
    assert storage.read("_spark_metadata/43").count(b"\n") == 1
    assert storage.read("_spark_metadata/39.compact").count(b"\n") == 21


def test_nothing_is_written_when_nothing_changed(storage):
    state = state_of(new_path())
    SparkView(storage).bring_up_to_date(lambda: state)
    before = storage.list_directory("_spark_metadata")
    SparkView(storage).bring_up_to_date(lambda: state)
    assert storage.list_directory("_spark_metadata") == before


def test_a_removal_goes_on_at_the_next_compact(storage):
    view, one, two = SparkView(storage), new_path(), new_path()
    view.bring_up_to_date(lambda: state_of(one))
    view.bring_up_to_date(lambda: state_of(one, two))
    view.bring_up_to_date(lambda: state_of(two))
    assert [e.name for e in storage.list_directory("_spark_metadata")] == [
        "19.compact",
        "20",
        "29.compact",
        "9.compact",
    ]
    assert seen_by_spark(storage) == uris(storage, state_of(two))


def test_spark_sees_a_whole_state_whatever_happens(tmp_path, no_sync):
    """Appends, removals and crashes at every change, read with every interval that Spark may be set to."""
    for seed in range(60):
        dice = random.Random(seed)
        storage = Crashing(str(tmp_path / f"archive {seed}"))
        views = [SparkView(storage), SparkView(storage)]  # of two processes that write in turns
        paths: list[str] = []
        allowed = [[]]  # before and after the change that is under way
        for step in range(40):
            if paths and dice.random() < 0.2:
                del paths[: dice.randint(1, len(paths))]
            paths += [new_path(f"{seed:012x}", 100 * step + n) for n in range(dice.randint(0, 2))]
            state = state_of(*paths)
            storage.changes = dice.choice((0, 1, 2, 3, 10**9, 10**9))
            try:
                dice.choice(views).bring_up_to_date(lambda state=state: state)
                allowed = [uris(storage, state)]
            except Crash:
                allowed.append(uris(storage, state))
            if storage.list_directory("_spark_metadata"):
                seen = [seen_by_spark(storage, default) for default in DEFAULTS]
                assert seen[0] in allowed, (seed, step)
                assert seen == [seen[0]] * len(DEFAULTS), (seed, step)


def test_a_directory_that_was_moved_is_seen_at_its_new_place(storage, tmp_path):
    state = state_of(new_path(), new_path())
    SparkView(storage).bring_up_to_date(lambda: state)
    Path(storage.root).rename(tmp_path / "moved")
    moved = LocalStorage(str(tmp_path / "moved"))
    SparkView(moved).bring_up_to_date(lambda: state)
    assert seen_by_spark(moved) == uris(moved, state)
    assert seen_by_spark(moved)[0].startswith(f"file://{tmp_path}/moved/topic=t/")


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
def test_a_damaged_view_is_made_anew(storage, damage):
    paths = [new_path() for _ in range(3)]
    for count in range(3):
        SparkView(storage).bring_up_to_date(lambda count=count: state_of(*paths[: count + 1]))
    for name, data in damage.items():
        storage.delete(f"_spark_metadata/{name}")
        if data is not None:
            storage.create(f"_spark_metadata/{name}", data)
    wanted = uris(storage, state_of(*paths))
    SparkView(storage).bring_up_to_date(lambda: state_of(*paths))
    assert [seen_by_spark(storage, default) for default in DEFAULTS] == [wanted] * len(DEFAULTS)
    assert sorted(SparkView(storage).listed()) == wanted


def test_who_comes_second_shows_the_newer_state(storage):
    """Two processes: the one that made the older commit is late with its view."""
    one, two = new_path(), new_path()
    states = [state_of(one)]
    SparkView(storage).bring_up_to_date(lambda: states[-1])

    def late() -> ArchiveState:
        if len(states) == 1:
            states.append(state_of(two))
            SparkView(storage).bring_up_to_date(lambda: states[-1])
            return states[0]
        return states[-1]

    SparkView(storage).bring_up_to_date(late)
    assert seen_by_spark(storage) == uris(storage, state_of(two))
