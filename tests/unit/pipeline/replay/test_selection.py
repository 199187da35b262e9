"""Which data files a selection needs, and what is known about the selected records from the manifest."""

from typing import Any

import pytest

from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import TopicState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.archived_rows import ReplayedTopic
from kbroker.pipeline.replay.selection import (
    Selection,
    archived_ends,
    is_fully_selected,
    matching_files,
    parse_offset_range,
)


def file(name: str = "", partition: int = 0, first: int = 0, last: int = 99, from_ms: int = 1000, to_ms: int = 2000):
    entry: Any = None
    return DataFile(name, partition, first, last, last - first + 1, 10, from_ms, to_ms, entry)


TOPIC = ReplayedTopic(
    TopicState(covered={0: (OffsetRange(0, 200),), 1: (OffsetRange(0, 20), OffsetRange(30, 50)), 2: ()}),
    [file("a"), file("b", 0, 100, 199, 2000, 3000), file("c", 1, 0, 49, 1500, 2500), file("d", 2, 0, 9, 5000, 5000)],
    {},
    None,
)
TOPICS = {"t": TOPIC, "other": TOPIC}


def matching(end_offsets=None, **selection):
    """Return the names of the files that a selection matches."""
    end_offsets = end_offsets or {"t": {**archived_ends(TOPICS)["t"], 2: 10}}
    return "".join(file.path for file in matching_files(TOPICS, Selection(("t",), **selection), end_offsets)["t"])


def test_files_that_cannot_match_are_not_read():
    assert archived_ends({"t": TOPIC}) == {"t": {0: 200, 1: 50}}
    assert list(matching_files(TOPICS, Selection(("other",)), archived_ends(TOPICS))) == ["other"]
    assert matching() == "abcd"
    assert matching(from_ms=2001) == "bcd"
    assert matching(until_ms=2000) == "ac"
    assert matching(until_ms=1000) == ""
    assert matching(from_ms=2501, until_ms=5000) == "b"
    assert matching(partitions=(0,)) == "ab"
    assert matching(partitions=(2,)) == "d"
    assert matching(offsets=((0, 100, 101),)) == "b"
    assert matching(offsets=((0, 50, None),)) == "ab"
    assert matching(offsets=((0, 99, 100), (1, 49, 60))) == "ac"
    assert matching(offsets=((1, 50, 60),)) == ""
    assert matching(offsets=((0, 0, None),), partitions=(1,)) == ""
    assert matching(key="k") == "abcd"


def test_records_archived_after_the_plan_are_not_selected():
    assert matching({"t": {0: 100, 1: 50}}) == "ac"
    assert not is_fully_selected(file("", 0, 50, 149), Selection(("t",)), 100)
    assert is_fully_selected(file("", 0, 50, 99), Selection(("t",)), 100)


def test_a_file_is_fully_selected_when_every_row_is():
    def is_full(**selection):
        return is_fully_selected(file("", 0, 10, 20, 1000, 2000), Selection(("t",), **selection), 100)

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


def test_offset_ranges_are_parsed():
    assert parse_offset_range("3:10-20") == (3, 10, 20)
    assert parse_offset_range("0:10-") == (0, 10, None)
    assert parse_offset_range("0:-5") == (0, 0, 5)
    for text in ("10-20", "0:20-10", "0:5-5", "0:-", "x:1-2", "0:1-2-3", ""):
        with pytest.raises(PipelineError):
            parse_offset_range(text)
