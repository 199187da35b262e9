"""What of an aggregate's results is drawn: series by group, in buckets that can be seen."""

from types import SimpleNamespace

import pytest

from kbroker.pipeline import plot
from kbroker.pipeline.aggregate import result_plot as aggregate_plot
from kbroker.pipeline.aggregate.definition import AggregateDefinition, GroupKey
from kbroker.pipeline.errors import PipelineError

HOUR = 3_600_000
T0 = 1_356_998_400_000


def drawn(monkeypatch, definition, rows):
    """The arguments of plot_over_time."""
    asked = {}

    def plot_over_time(path, title, series, unit="", **options):
        asked.update(options, path=path, title=title, series=series, unit=unit)

    monkeypatch.setattr(plot, "plot_over_time", plot_over_time)
    aggregate_plot.draw_results("out.png", definition, SimpleNamespace(collect=lambda: [Row(row) for row in rows]))
    return asked


class Row(dict):
    """As Spark's, by name both ways."""

    __getattr__ = dict.__getitem__


def row(label, at, count):
    return {"label": label, "from_ms": at, "count": count, "bytes": 10 * count}


def hourly(**changes):
    return AggregateDefinition(**{"topics": ("orders",), "window_ms": HOUR, "slide_ms": HOUR} | changes)


def test_a_window_is_a_bucket(monkeypatch):
    rows = [row("b", T0 + HOUR, 3), row("a", T0 + HOUR, 2), row("a", T0, 5)]
    asked = drawn(monkeypatch, hourly(keys=(GroupKey("shop", "$.shop"),)), rows)
    assert asked["series"] == {"a": [(T0, 5.0), (T0 + HOUR, 2.0)], "b": [(T0 + HOUR, 3.0)]}
    assert asked["lower"]["a"] == [(T0, 50.0), (T0 + HOUR, 20.0)]
    assert (asked["title"], asked["unit"], asked["width_ms"]) == ("orders, by shop", "records per hour", HOUR)


def test_more_windows_than_can_be_seen_are_added_up(monkeypatch):
    rows = [row("all", T0 + i * 1000, 1) for i in range(86_400)]
    asked = drawn(monkeypatch, hourly(window_ms=1000, slide_ms=1000), rows)
    points = asked["series"]["all"]
    assert len(points) <= plot.MAX_BUCKETS
    assert sum(value for _, value in points) == pytest.approx(86_400)
    assert asked["unit"] == "records per 15 minutes"


def test_windows_that_overlap_are_lines(monkeypatch):
    asked = drawn(monkeypatch, hourly(slide_ms=HOUR // 2), [row("all", T0, 5), row("all", T0 + HOUR // 2, 4)])
    assert asked["width_ms"] is None
    assert asked["series"] == {"all": [(T0, 5.0), (T0 + HOUR // 2, 4.0)]}
    assert asked["note"] == "each window is 1 hour long, and a new one begins every 30 minutes"


def test_what_cannot_be_drawn_is_told():
    with pytest.raises(PipelineError, match="a plot shows the count"):
        aggregate_plot.check_plot("out.png", hourly(compute=("bytes",)))
    with pytest.raises(PipelineError, match="there is nothing to plot yet"):
        aggregate_plot.draw_results("out.png", hourly(), SimpleNamespace(collect=list))
