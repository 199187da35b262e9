"""A small archive for the tests of the archive commands."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import create_archive
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap, TopicInfo
from tests.unit.support.archive_tables import append_rows


@pytest.fixture
def fill_archive() -> Callable[[Path], Archive]:
    """Create an archive of t with partition 0, and of u with partitions 0 and 1, a gap, a config and a group."""

    def fill(directory: Path) -> Archive:
        archive = create_archive(str(directory), {})
        append_rows(archive.create_table("t"), count=10)
        table = archive.create_table("u")
        for partition in (0, 1):
            append_rows(table, partition, 5, 3, 1000)
        state = replace(
            table.state,
            topic=TopicInfo("id-of-u", 2, {"retention.ms": "60000"}),
            groups={"readers": {0: 7, 1: 6}},
            groups_ms=1_709_251_200_000,
        )
        gap = Gap(0, 0, 5, "retention")
        table.commit("observe", state.with_covered([(1, OffsetRange(8, 10))], [gap]))
        return archive

    return fill
