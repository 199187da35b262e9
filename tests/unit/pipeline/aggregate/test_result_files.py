"""The directory of an aggregate's Parquet files."""

import os

import pytest

from kbroker.pipeline.aggregate import result_files
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage


def test_a_result_directory_belongs_to_one_checkpoint(tmp_path):
    storage = LocalStorage(str(tmp_path))
    storage.create("_checkpoint/kbroker-aggregate.json", b"")
    result_files.claim_directory(storage, "mine")
    storage.create("_staging/date=2026-01-01/part.parquet", b"of an interrupted batch")
    result_files.claim_directory(storage, "mine")
    result_files.remove_staging(storage)
    assert not storage.exists("_staging")
    with pytest.raises(PipelineError, match="has the results of an aggregate with another checkpoint"):
        result_files.claim_directory(storage, "yours")


@pytest.mark.timeout(120)
def test_an_empty_result_file_or_a_fifo_is_an_error(tmp_path):
    storage, path = LocalStorage(str(tmp_path)), result_files.result_path("2024-02-29")
    storage.create(path, b"PAR1")
    result_files._require_not_empty(storage, [path])
    storage.replace(path, b"")
    with pytest.raises(PipelineError, match="is empty, so its results are lost: aggregate again"):
        result_files._require_not_empty(storage, [path])
    storage.delete(path)
    os.mkfifo(tmp_path / path)
    with pytest.raises(PipelineError, match="is a FIFO"):
        result_files._require_not_empty(storage, [path])
