"""Generations of Spark's checkpoint: whose they are, where they are, and whether to go on with them."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.checkpoint import Checkpoints, goes_on
from kbroker.pipeline.archive.ingest.subscription import Note, Subscription
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.location import open_storage

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOTE = Note("mine", "q", Subscription(("t",)), False, {A: 0})


@pytest.fixture(params=["", "_checkpoint"])
def checkpoints(request, tmp_path):
    return Checkpoints(open_storage(str(tmp_path)), request.param, "mine")


def write(generation, name, text):
    assert generation.storage.create(f"{generation.path}/{name}", text.encode())


def offsets(value):
    return f'v1\n{{"batchWatermarkMs":0}}\n{{"t":{{"0":{value}}}}}'


def test_generations_follow_each_other_and_old_ones_go(checkpoints):
    assert checkpoints.newest() is None
    for number in range(3):
        begun = checkpoints.begin(NOTE)
        assert begun.path.endswith(str(number))
        assert checkpoints.newest() == begun
        assert begun.location.startswith("file:/")
    storage, path = begun.storage, begun.path.rpartition("/")[0]
    assert [entry.name for entry in storage.list_directory(path)] == ["1", "2"]


def test_the_position_is_that_of_the_last_batch_that_was_done(checkpoints):
    generation = checkpoints.begin(NOTE)
    assert generation.position() is None
    write(generation, "sources/0/0", '\0v1\n{"t":{"0":5}}')
    write(generation, "offsets/0", offsets(10))
    assert generation.position() == ({A: 5}, {A: 10})
    assert generation.planned(0) == ({A: 5}, {A: 10})
    write(generation, "commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    assert generation.position() == ({A: 10}, {A: 10})
    write(generation, "offsets/1", offsets(30))
    write(generation, "offsets/.1.crc", "x")
    assert generation.position() == ({A: 10}, {A: 30})


def test_a_checkpoint_that_is_cut_is_refused(checkpoints):
    generation = checkpoints.begin(NOTE)
    write(generation, "offsets/0", offsets(10)[:-3])
    write(generation, "commits/0", "v1\n{}")
    with pytest.raises(PipelineError, match="offsets/0 is not of a query that reads topics"):
        generation.position()


def test_two_runs_cannot_begin_the_same_generation(checkpoints, monkeypatch):
    checkpoints.begin(NOTE)
    monkeypatch.setattr(type(open_storage("/")), "list_directory", lambda *_: [])
    with pytest.raises(PipelineError, match="another `kbroker archive run` is at work"):
        checkpoints.begin(NOTE)


def test_another_archives_checkpoint_is_refused(tmp_path):
    storage = open_storage(str(tmp_path))
    Checkpoints(storage, "", "mine").begin(NOTE)
    with pytest.raises(PipelineError, match=r"is the checkpoint of another archive \(t\): remove it, or name another"):
        Checkpoints(storage, "", "theirs").newest()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("offsets/0", "is the checkpoint of another Spark query"),
        ("notes.txt", "has notes.txt in it"),
        ("0/offsets/0", "has no kbroker.json"),
        ("0/kbroker.json", "is no note of"),
    ],
)
def test_what_is_no_checkpoint_of_ours_is_refused(tmp_path, file, said):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("x")
    with pytest.raises(PipelineError, match=said):
        Checkpoints(open_storage(str(tmp_path)), "", "mine").newest()


@pytest.mark.parametrize(
    ("position", "expected", "wanted"),
    [
        (None, {A: 0}, False),
        (({A: 10}, {A: 10}), {A: 10}, True),
        (({A: 10}, {A: 30}), {A: 10}, True),  # the batch was not committed
        (({A: 10}, {A: 30}), {A: 30}, True),  # it was, and Spark was not told
        (({A: 10}, {A: 30}), {A: 40}, False),  # an old checkpoint
        (({A: 10}, {A: 10}), {A: 5}, False),  # an archive that was put back
        (({A: 10}, {A: 10}), {A: 10, B: 0}, True),  # a new partition, which Spark reads whole
        (({A: 10}, {A: 30, B: 5}), {A: 30, B: 5}, True),
        (({A: 10}, {A: 10}), {A: 10, B: 7}, False),  # a partition that is not to be read whole
        (({A: 10, B: 3}, {A: 10, B: 3}), {A: 10}, False),  # a topic that is gone
    ],
)
def test_a_checkpoint_is_gone_on_with_only_where_it_fits_the_archive(position, expected, wanted):
    assert goes_on(position, expected) is wanted
