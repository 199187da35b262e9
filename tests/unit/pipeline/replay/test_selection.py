"""Which data files a selection needs, and what is known about the selected records from the manifest."""

import os

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import (
    SelectedRecords,
    Selection,
    archived_ends,
    is_fully_selected,
    matching_files,
    matching_parts,
    parse_offset_range,
)
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append_file, create_archive


def part(partition=0, first=0, last=99, from_ms=1000, to_ms=2000):
    return PartitionStats(partition, first, last, last - first + 1, 10, from_ms, to_ms, 0)


def file(name, *parts, topic="t"):
    return DataFile(f"topic={topic}/date=2026-01-01/{name}.parquet", topic, "2026-01-01", 1, "", parts)


FILES = [
    file("a", part(0, 0, 99, 1000, 2000)),
    file("b", part(0, 100, 199, 2000, 3000)),
    file("c", part(1, 0, 49, 1500, 2500), part(2, 0, 9, 5000, 5000)),
    file("d", part(0, 0, 9), topic="other"),
]
STATE = ArchiveState(
    files={file.path: file for file in FILES},
    covered={
        TopicPartition("t", 0): (OffsetRange(0, 200),),
        TopicPartition("t", 1): (OffsetRange(0, 20), OffsetRange(30, 50)),
        TopicPartition("t", 2): (OffsetRange(0, 10),),
    },
)
END_OFFSETS = archived_ends(STATE, ["t"])


@pytest.mark.timeout(120)
def test_files_of_another_size_are_an_error(tmp_path):
    archive = create_archive(LocalStorage(str(tmp_path)))
    files = [append_file(archive) for _ in range(3)]
    state, selection = archive.state(), Selection(("t",))
    routing = Routing({"t": "t"}, {"t": 1})
    records = SelectedRecords(None, archive, state, selection, archived_ends(state, ["t"]), routing, False)  # type: ignore[arg-type]
    records.require_files()
    path = tmp_path / files[1].path
    for damage, message in (
        (lambda: path.write_bytes(b""), f"has 0 bytes instead of {files[1].size}; `kbroker archive verify` reports"),
        (lambda: (path.unlink(), os.mkfifo(path)), "is a FIFO"),
        (path.unlink, "no such file"),
    ):
        damage()
        with pytest.raises(PipelineError, match=f"{files[1].path}: {message}"):
            records.require_files()


def matching(**selection):
    """Return the letters of the files that a selection matches."""
    topics = selection.pop("topics", ("t",))
    files = matching_files(STATE, Selection(topics, **selection), archived_ends(STATE, topics))
    return "".join(file.path[-len("a.parquet")] for file in files)


def test_files_that_cannot_match_are_not_read():
    assert END_OFFSETS == {"t": {0: 200, 1: 50, 2: 10}}
    assert matching() == "abc"
    assert matching(from_ms=2001) == "bc"
    assert matching(until_ms=2000) == "ac"
    assert matching(until_ms=1000) == ""
    assert matching(from_ms=2501, until_ms=5000) == "b"
    assert matching(partitions=(0,)) == "ab"
    assert matching(partitions=(2,)) == "c"
    assert matching(offsets=((0, 100, 101),)) == "b"
    assert matching(offsets=((0, 50, None),)) == "ab"
    assert matching(offsets=((0, 99, 100), (1, 49, 60))) == "ac"
    assert matching(offsets=((1, 50, 60),)) == ""
    assert matching(offsets=((0, 0, None),), partitions=(1,)) == ""
    assert matching(key="k") == "abc"


def test_records_archived_after_the_plan_are_not_selected():
    end_offsets = {"t": {0: 100, 1: 50, 2: 10}}
    assert [file.path[-9] for file in matching_files(STATE, Selection(("t",)), end_offsets)] == ["a", "c"]
    assert not is_fully_selected(part(0, 50, 149), Selection(("t",)), 100)
    assert is_fully_selected(part(0, 50, 99), Selection(("t",)), 100)


def test_a_part_is_fully_selected_when_every_row_is():
    def is_full(**selection):
        return is_fully_selected(part(0, 10, 20, 1000, 2000), Selection(("t",), **selection), 100)

    assert is_full()
    assert is_full(from_ms=1000, until_ms=2001)
    assert not is_full(from_ms=1001)
    assert not is_full(until_ms=2000)
    assert is_full(offsets=((0, 10, 21),))
    assert not is_full(offsets=((0, 10, 20),))
    assert not is_full(offsets=((0, 11, None),))
    assert not is_full(key="k")
    assert not is_full(key_regex="k")
    assert not is_full(headers=(("a", None),))
    assert [p.partition for p in matching_parts(FILES[2], Selection(("t",), until_ms=3000), END_OFFSETS)] == [1]


def test_offset_ranges_are_parsed():
    assert parse_offset_range("3:10-20") == (3, 10, 20)
    assert parse_offset_range("0:10-") == (0, 10, None)
    assert parse_offset_range("0:-5") == (0, 0, 5)
    for text in ("10-20", "0:20-10", "0:5-5", "0:-", "x:1-2", "0:1-2-3", ""):
        with pytest.raises(PipelineError):
            parse_offset_range(text)
