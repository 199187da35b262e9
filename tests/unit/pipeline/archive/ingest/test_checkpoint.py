"""Generations of Spark's checkpoint, their metadata, and which ones a run continues with."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.checkpoint import (
    BatchOffsets,
    CheckpointDirectory,
    CheckpointMetadata,
    continues_archive,
    decode_metadata,
    encode_metadata,
)
from kbroker.pipeline.archive.ingest.options import Subscription
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
METADATA = CheckpointMetadata("mine", "q", Subscription(("t",)), False, {A: 0})


@pytest.fixture(params=["", "_checkpoint"])
def checkpoints(request, tmp_path):
    return CheckpointDirectory(LocalStorage(str(tmp_path)), request.param, "mine")


def write(checkpoint, name, text):
    assert checkpoint.storage.create(f"{checkpoint.path}/{name}", text.encode())


def offsets(value):
    return f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"0":{value}}}}}'


def test_two_generations_are_retained(checkpoints):
    assert checkpoints.newest() is None
    for number in range(3):
        checkpoint = checkpoints.create(METADATA)
        assert checkpoint.path.endswith(str(number))
        assert checkpoints.newest() == checkpoint
        assert checkpoint.location.startswith("file:/")
    directory = checkpoint.path.rpartition("/")[0]
    assert [entry.name for entry in checkpoint.storage.list_directory(directory)] == ["1", "2"]


def test_the_next_batch_is_the_unfinished_one_or_an_empty_one(checkpoints):
    checkpoint = checkpoints.create(METADATA)
    assert checkpoint.next_batch() is None
    write(checkpoint, "sources/0/0", '\0v1\n{"t":{"0":5}}')
    write(checkpoint, "offsets/0", offsets(10))
    assert checkpoint.next_batch() == ({A: 5}, {A: 10})
    assert checkpoint.batch_offsets(0) == ({A: 5}, {A: 10})
    write(checkpoint, "commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    assert checkpoint.next_batch() == ({A: 10}, {A: 10})
    write(checkpoint, "offsets/1", offsets(30))
    write(checkpoint, "offsets/.1.crc", "x")
    assert checkpoint.next_batch() == ({A: 10}, {A: 30})


def test_a_truncated_checkpoint_is_rejected(checkpoints):
    checkpoint = checkpoints.create(METADATA)
    write(checkpoint, "offsets/0", offsets(10)[:-3])
    write(checkpoint, "commits/0", "v1\n{}")
    with pytest.raises(PipelineError, match="offsets/0 does not belong to a query that reads topics"):
        checkpoint.next_batch()


def test_two_runs_cannot_create_the_same_generation(checkpoints, monkeypatch):
    checkpoints.create(METADATA)
    monkeypatch.setattr(LocalStorage, "list_directory", lambda *_: [])
    with pytest.raises(PipelineError, match="another `kbroker archive run` is using"):
        checkpoints.create(METADATA)


def test_the_checkpoint_of_another_archive_is_rejected(tmp_path):
    storage = LocalStorage(str(tmp_path))
    CheckpointDirectory(storage, "", "mine").create(METADATA)
    with pytest.raises(
        PipelineError, match=r"is the checkpoint of another archive \(of t\): specify another directory"
    ):
        CheckpointDirectory(storage, "", "other").newest()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("offsets/0", "is the checkpoint of another Spark query"),
        ("notes.txt", "contains notes.txt"),
        ("0/offsets/0", "has no kbroker.json"),
        ("0/kbroker.json", "is not checkpoint metadata of"),
    ],
)
def test_a_directory_with_other_content_is_rejected(tmp_path, file, message):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("x")
    with pytest.raises(PipelineError, match=message):
        CheckpointDirectory(LocalStorage(str(tmp_path)), "", "mine").newest()


@pytest.mark.parametrize(
    ("begins", "ends", "expected", "continues"),
    [
        ({A: 10}, {A: 10}, {A: 10}, True),
        ({A: 10}, {A: 30}, {A: 10}, True),  # the batch was not committed
        ({A: 10}, {A: 30}, {A: 30}, True),  # the batch was committed, but Spark did not finish it
        ({A: 10}, {A: 30}, {A: 40}, False),  # the checkpoint is older than the archive
        ({A: 10}, {A: 10}, {A: 5}, False),  # the archive was restored from an older copy
        ({A: 10}, {A: 10}, {A: 10, B: 0}, True),  # a new partition, which Spark reads completely
        ({A: 10}, {A: 30, B: 5}, {A: 30, B: 5}, True),
        ({A: 10}, {A: 10}, {A: 10, B: 7}, False),  # a partition that must not be read completely
        ({A: 10, B: 3}, {A: 10, B: 3}, {A: 10}, False),  # a topic was deleted
    ],
)
def test_a_query_continues_only_at_the_archives_offsets(begins, ends, expected, continues):
    assert continues_archive(BatchOffsets(begins, ends), expected) is continues


def test_a_checkpoint_without_a_batch_is_not_continued():
    assert not continues_archive(None, {A: 0})


def test_metadata_is_decoded_as_it_was_encoded():
    for subscription in (Subscription(("a", "b")), Subscription((), "a.*")):
        starts = {TopicPartition("a", 10): 7, TopicPartition("a", 2): 0}
        metadata = CheckpointMetadata("archive", "query", subscription, True, starts)
        assert decode_metadata(encode_metadata(metadata), "f") == metadata


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": "other", "version": 1}', b"\xff", b'{"format"'])
def test_other_files_are_not_metadata(data):
    with pytest.raises(PipelineError, match=r"^f is not checkpoint metadata"):
        decode_metadata(data, "f")
