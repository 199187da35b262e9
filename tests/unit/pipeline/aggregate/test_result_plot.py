"""The plot of an aggregate's results: series by group, in at most MAX_BUCKETS buckets."""

from types import SimpleNamespace

import pytest

from kbroker.pipeline import plot
from kbroker.pipeline.aggregate import result_plot
from kbroker.pipeline.aggregate.definition import AggregateDefinition, GroupKey
from kbroker.pipeline.errors import PipelineError

HOUR = 3_600_000
T0 = 1_356_998_400_000


def plot_arguments(monkeypatch, definition, rows):
    """Return the arguments of plot_over_time."""
    arguments = {}

    def plot_over_time(path, title, series, unit="", **options):
        arguments.update(options, path=path, title=title, series=series, unit=unit)

    monkeypatch.setattr(plot, "plot_over_time", plot_over_time)
    result_plot.draw_results("out.png", definition, SimpleNamespace(collect=lambda: [Row(row) for row in rows]))
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
        result_plot.check_plot("out.png", hourly(compute=("bytes",)))
    with pytest.raises(PipelineError, match="there is nothing to plot yet"):
        result_plot.draw_results("out.png", hourly(), SimpleNamespace(collect=list))
