"""Plots the records and bytes of an archive over time, from its manifest."""

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
    dated = {topic: [item for item in items if item.from_ms >= 0] for topic, items in stats.items()}
    all_dated = [item for items in dated.values() for item in items]
    if not all_dated:
        raise PipelineError(f"{path}: there is nothing to plot, because no row has a timestamp")
    bucket = plot.bucket_length(min(item.from_ms for item in all_dated), max(item.to_ms for item in all_dated))

    def series(amount: Callable[[PartitionStats], int]) -> dict[str, plot.Points]:
        return {
            topic: plot.sum_by_bucket(
                (plot.SpanAmount(item.from_ms, item.to_ms, amount(item)) for item in items), bucket.ms
            )
            for topic, items in dated.items()
        }

    rows, data = series(lambda item: item.rows), series(lambda item: item.bytes)
    all_rows = sum(item.rows for items in stats.values() for item in items)
    undated = all_rows - sum(item.rows for item in all_dated)
    plot.plot_over_time(
        path,
        title,
        plot.largest_series(rows),
        f"records per {bucket.text}",
        lower=plot.largest_series(data, by=rows),
        lower_unit=f"bytes per {bucket.text}",
        width_ms=bucket.ms,
        note=_footnote(undated),
    )


def _footnote(undated: int) -> str:
    omitted = f" Omitted: files with {undated} rows without a timestamp." if undated else ""
    return f"Bytes of keys and values. The rows of a file are distributed evenly over the time that they span.{omitted}"
