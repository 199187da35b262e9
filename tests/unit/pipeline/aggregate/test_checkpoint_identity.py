"""The file that says which aggregate a checkpoint belongs to, and the checkpoint's lock."""

from dataclasses import replace

import pytest

from kbroker.archive.storage.local import LocalStorage
from kbroker.pipeline.aggregate import checkpoint_identity, result_files
from kbroker.pipeline.aggregate.checkpoint_identity import claim_checkpoint, lock_checkpoint
from kbroker.pipeline.errors import PipelineError
from tests.unit.support.aggregates import FULL, HOUR


@pytest.fixture
def checkpoint(tmp_path):
    return LocalStorage(str(tmp_path / "checkpoint"))


def test_a_checkpoint_continues_the_same_aggregate(checkpoint):
    first = claim_checkpoint(checkpoint, FULL, {"orders": "id1"}, "topic out")
    again = claim_checkpoint(checkpoint, replace(FULL, watermark_ms=5), {"orders": "id1"}, "topic out")
    assert again == first


@pytest.mark.parametrize(
    ("changes", "ids", "target", "message"),
    [
        (
            {"window_ms": 2 * HOUR},
            "id1",
            "topic out",
            r"belongs to another aggregate \(window_ms 7200000, before 3600000\)",
        ),
        ({"value": ""}, "id1", "topic out", r"\(value none, before \$.amount\)"),
        ({"keys": ()}, "id1", "topic out", r"\(keys none, before key=key,shop=\$.shop\)"),
        ({}, "id1", "files", r"\(the target files, before topic out\)"),
        ({}, "id2", "topic out", "topic orders was deleted and created again"),
    ],
)
def test_a_checkpoint_of_another_aggregate_is_an_error(checkpoint, changes, ids, target, message):
    claim_checkpoint(checkpoint, FULL, {"orders": "id1"}, "topic out")
    with pytest.raises(PipelineError, match=message):
        claim_checkpoint(checkpoint, replace(FULL, **changes), {"orders": ids}, target)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"format": "kbroker-aggregate"}', b"\xff"])
def test_a_damaged_identity_file_is_an_error(checkpoint, damage):
    checkpoint.create(checkpoint_identity.FILE_NAME, damage)
    with pytest.raises(PipelineError, match=r"kbroker-aggregate\.json is damaged, or not the file of an aggregate"):
        claim_checkpoint(checkpoint, FULL, {}, "files")


def test_a_directory_with_other_files_is_an_error(checkpoint):
    checkpoint.create("offsets/0", b"v1")
    with pytest.raises(PipelineError, match="is not empty and not the checkpoint of an aggregate"):
        claim_checkpoint(checkpoint, FULL, {}, "files")
    with pytest.raises(PipelineError, match="contains offsets, which is not a result of an aggregate"):
        result_files.claim_directory(checkpoint, "id")


def test_a_checkpoint_is_locked(checkpoint):
    claim_checkpoint(checkpoint, FULL, {"orders": "id1"}, "topic out")
    with (
        lock_checkpoint(checkpoint),
        pytest.raises(PipelineError, match="is in use: this aggregate is already running"),
        lock_checkpoint(checkpoint),
    ):
        pass
    with lock_checkpoint(checkpoint):
        pass
