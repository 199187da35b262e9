"""Which storage a path or URI selects."""

import os
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.location import is_local, open_storage


def test_a_directory_has_one_name_whatever_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert LocalStorage(str(tmp_path / "link" / "x")).root == str(tmp_path / "x")
    assert open_storage(f"file://{tmp_path}/x").root == str(tmp_path / "x")
    assert open_storage(f"file:{tmp_path}/a b%20").uri("c") == f"file://{tmp_path}/a b%20/c"
    assert open_storage("a:b").root == os.path.realpath("a:b")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "name is empty"),
        ("hdfs://node/a", "without Spark"),
        ("s3a://bucket/a", "without Spark"),
        ("file://host/a", "another host"),
    ],
)
def test_locations_that_cannot_be_opened_are_rejected(location: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        open_storage(location)


def test_only_other_schemes_need_spark() -> None:
    for location in ("/a", "a:b", "file:/a", "FILE:///a", "a b/c:/d"):
        assert is_local(location), location
    for location in ("hdfs://node/a", "s3a://bucket/a", "x:/a"):
        assert not is_local(location), location
