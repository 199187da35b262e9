"""A small archive for the tests of the archive commands."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.pipeline.archive import staging
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import owner_path, staging_directory
from kbroker.pipeline.archive.manifest import CoveredRange, Gap, ManifestCommit, TopicInfo
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append_file, create_archive, make_file, new_data_path


@pytest.fixture
def fill_archive() -> Callable[[Path], Archive]:
    """Create an archive of t with partition 0, and of u with partitions 0 and 1, a gap, a config and a group."""

    def fill(directory: Path) -> Archive:
        archive = create_archive(LocalStorage(str(directory)))
        append_file(archive, rows=10)
        path = new_data_path(topic="u", date="2024-03-01")
        archive.storage.create(path, path.encode())
        archive.commit(
            lambda _: ManifestCommit(
                "append", 1_709_251_200_000,
                add=(make_file(path, 5, 3, 2),),
                covered=(CoveredRange("u", 0, 5, 8), CoveredRange("u", 1, 5, 10)),
                gaps=(Gap("u", 0, 0, 5, "retention"),),
                topics={"u": TopicInfo("id-of-u", 2, {"retention.ms": "60000"})},
                groups={"readers": {"u": {0: 7, 1: 6}}},
            )
        )  # fmt: skip
        return archive

    return fill


@pytest.fixture
def add_leftovers() -> Callable[[Path], list[str]]:
    """Create a file and a staging directory of a writer that died; return their paths."""

    def add(directory: Path) -> list[str]:
        storage, writer_id = LocalStorage(str(directory)), staging.new_writer_id()
        storage.create(owner_path(writer_id), staging.encode_owner(staging.this_process()._replace(start="0")))
        storage.create(new_data_path(writer_id), b"")
        return [new_data_path(writer_id), staging_directory(writer_id)]

    return add
