"""Draws the records and bytes of an archive over time, from its manifest."""

from collections import defaultdict
from collections.abc import Callable, Collection

from kbroker.pipeline import plot
from kbroker.pipeline.archive.manifest.model import ArchiveState, PartitionStats
from kbroker.pipeline.errors import PipelineError


def plot_archive(state: ArchiveState, path: str, title: str, topics: Collection[str] = ()) -> None:
    """Write a PNG with the records and bytes of all topics, or of the given ones.

    The rows of a file are distributed evenly over the time between its first and last timestamp. Raises PipelineError
    as plot.plot_over_time does.
    """
    plot.check_plot_path(path)
    stats: dict[str, list[PartitionStats]] = defaultdict(list)
    for file in state.files.values():
        if not topics or file.topic in topics:
            stats[file.topic] += file.partitions
    dated = {topic: [one for one in listed if one.from_ms >= 0] for topic, listed in stats.items()}
    all_dated = [one for listed in dated.values() for one in listed]
    if not all_dated:
        raise PipelineError(f"{path}: there is nothing to plot, because no row has a timestamp")
    step = plot.bucket_length(min(one.from_ms for one in all_dated), max(one.to_ms for one in all_dated))

    def series(amount: Callable[[PartitionStats], int]) -> dict[str, plot.Points]:
        return {
            topic: plot.sum_by_bucket((plot.SpanAmount(one.from_ms, one.to_ms, amount(one)) for one in listed), step.ms)
            for topic, listed in dated.items()
        }

    rows, data = series(lambda one: one.rows), series(lambda one: one.bytes)
    undated = sum(one.rows for listed in stats.values() for one in listed) - sum(one.rows for one in all_dated)
    plot.plot_over_time(
        path,
        title,
        plot.largest_series(rows),
        f"records per {step.text}",
        lower=plot.largest_series(data, by=rows),
        lower_unit=f"bytes per {step.text}",
        width_ms=step.ms,
        note=_footnote(undated),
    )


def _footnote(undated: int) -> str:
    omitted = f" Omitted: files with {undated} rows without a timestamp." if undated else ""
    return f"Bytes of keys and values. The rows of a file are distributed evenly over the time that they span.{omitted}"
