"""Results of an aggregate: files and plots."""

import os
from types import SimpleNamespace

import pytest

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage.local import LocalStorage
from kbroker.pipeline import plot
from kbroker.pipeline.aggregate import result_files
from kbroker.pipeline.aggregate.definition import AggregateDefinition, GroupKey
from kbroker.pipeline.errors import PipelineError


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
    with pytest.raises(ArchiveError, match="is not a file"):
        result_files._require_not_empty(storage, [path])


HOUR = 3_600_000
T0 = 1_356_998_400_000


def plot_arguments(monkeypatch, definition, rows):
    """Return the arguments of plot_over_time."""
    arguments = {}

    def plot_over_time(path, title, series, unit="", **options):
        arguments.update(options, path=path, title=title, series=series, unit=unit)

    monkeypatch.setattr(plot, "plot_over_time", plot_over_time)
    result_files.draw_results("out.png", definition, SimpleNamespace(collect=lambda: [Row(row) for row in rows]))
    return arguments


class Row(dict):
    """A row with access by attribute and by item, as Spark's."""

    __getattr__ = dict.__getitem__


def row(label, at, count):
    return {"label": label, "from_ms": at, "count": count, "bytes": 10 * count}


def hourly(**changes):
    return AggregateDefinition(**{"topics": ("orders",), "window_ms": HOUR, "slide_ms": HOUR} | changes)


def test_a_window_is_a_bucket(monkeypatch):
    rows = [row("b", T0 + HOUR, 3), row("a", T0 + HOUR, 2), row("a", T0, 5)]
    arguments = plot_arguments(monkeypatch, hourly(keys=(GroupKey("shop", "$.shop"),)), rows)
    assert arguments["series"] == {"a": [(T0, 5.0), (T0 + HOUR, 2.0)], "b": [(T0 + HOUR, 3.0)]}
    assert arguments["lower"]["a"] == [(T0, 50.0), (T0 + HOUR, 20.0)]
    assert (arguments["title"], arguments["unit"], arguments["width_ms"]) == (
        "orders, by shop",
        "records per hour",
        HOUR,
    )


def test_too_many_windows_are_added_up_in_longer_buckets(monkeypatch):
    rows = [row("all", T0 + i * 1000, 1) for i in range(86_400)]
    arguments = plot_arguments(monkeypatch, hourly(window_ms=1000, slide_ms=1000), rows)
    points = arguments["series"]["all"]
    assert len(points) <= plot.MAX_BUCKETS
    assert sum(value for _, value in points) == pytest.approx(86_400)
    assert arguments["unit"] == "records per 15 minutes"


def test_overlapping_windows_are_plotted_as_lines(monkeypatch):
    arguments = plot_arguments(
        monkeypatch, hourly(slide_ms=HOUR // 2), [row("all", T0, 5), row("all", T0 + HOUR // 2, 4)]
    )
    assert arguments["width_ms"] is None
    assert arguments["series"] == {"all": [(T0, 5.0), (T0 + HOUR // 2, 4.0)]}
    assert arguments["note"] == "each window is 1 hour long, and a new one starts every 30 minutes"


def test_results_without_a_count_or_rows_are_an_error():
    with pytest.raises(PipelineError, match="a plot requires the count"):
        result_files.check_plot("out.png", hourly(compute=("bytes",)))
    with pytest.raises(PipelineError, match="there is nothing to plot yet"):
        result_files.draw_results("out.png", hourly(), SimpleNamespace(collect=list))
