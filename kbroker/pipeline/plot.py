"""PNG plots of amounts over time. Matplotlib is imported only when a plot is drawn."""

import io
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.common import install_command
from kbroker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from kbroker.archive.data_files import DataFile

Points = Sequence[tuple[int, float]]  # (time_ms, value), ascending
Series = Mapping[str, Points]

MAX_BUCKETS = 150
MAX_SERIES = 8  # more colours cannot be distinguished
OTHERS = "others"
MAX_NAME_CHARACTERS = 40
MAX_LINE_CHARACTERS = 110
# Times before 1970 or after this are drawn at the edge: datetime ends with the year 9999, and charts have margins.
LAST_MS = 221_845_392_000_000  # the beginning of the year 9000

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
# Okabe and Ito's colours, which colour-blind people can distinguish, without the yellow, which is faint on white.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#5F4690", "#000000")
_GREY = "#999999"


class BucketLength(NamedTuple):
    """The length of the buckets on the time axis."""

    ms: int
    text: str  # "5 minutes"


class SpanAmount(NamedTuple):
    """An amount distributed over a time span; both ends are included."""

    from_ms: int
    to_ms: int
    amount: float


BUCKET_LENGTHS = (
    BucketLength(_SECOND, "second"),
    BucketLength(5 * _SECOND, "5 seconds"),
    BucketLength(15 * _SECOND, "15 seconds"),
    BucketLength(_MINUTE, "minute"),
    BucketLength(5 * _MINUTE, "5 minutes"),
    BucketLength(15 * _MINUTE, "15 minutes"),
    BucketLength(_HOUR, "hour"),
    BucketLength(3 * _HOUR, "3 hours"),
    BucketLength(6 * _HOUR, "6 hours"),
    BucketLength(12 * _HOUR, "12 hours"),
    BucketLength(_DAY, "day"),
    BucketLength(2 * _DAY, "2 days"),
    BucketLength(7 * _DAY, "week"),
    BucketLength(28 * _DAY, "4 weeks"),
    BucketLength(91 * _DAY, "91 days"),
    BucketLength(365 * _DAY, "365 days"),
    BucketLength(3652 * _DAY, "3652 days"),
)


def bucket_length(from_ms: int, to_ms: int) -> BucketLength:
    """Return the shortest length with which at most MAX_BUCKETS cover the time span."""
    for length in BUCKET_LENGTHS:
        if to_ms // length.ms - from_ms // length.ms < MAX_BUCKETS:
            return length
    return BUCKET_LENGTHS[-1]


def sum_by_bucket(amounts: Iterable[SpanAmount], bucket_ms: int) -> list[tuple[int, float]]:
    """Return (start of the bucket, sum), ascending. Each amount is distributed evenly over its time span."""
    buckets: dict[int, float] = {}
    for from_ms, to_ms, amount in amounts:
        per_ms = amount / (to_ms + 1 - from_ms)
        for start in range(from_ms // bucket_ms * bucket_ms, to_ms + 1, bucket_ms):
            overlap_ms = min(to_ms + 1, start + bucket_ms) - max(from_ms, start)
            buckets[start] = buckets.get(start, 0.0) + per_ms * overlap_ms
    return sorted(buckets.items())


def largest_series(series: Series, limit: int = MAX_SERIES, by: Series | None = None) -> dict[str, Points]:
    """Return at most `limit` series, the largest sum first. The last one is the sum of all others.

    `by`: choose by the sums of these series with the same names, so that two charts show the same names.
    """
    by = series if by is None else by
    ordered = sorted(series, key=lambda name: (-sum(value for _, value in by[name]), name))
    if len(ordered) <= limit:
        return {name: series[name] for name in ordered}
    others: dict[int, float] = {}
    for name in ordered[limit - 1 :]:
        for time_ms, value in series[name]:
            others[time_ms] = others.get(time_ms, 0.0) + value
    largest = {name: series[name] for name in ordered[: limit - 1]}
    return {**largest, f"{len(ordered) - limit + 1} {OTHERS}": sorted(others.items())}


def check_plot_path(path: str) -> None:
    """Raise PipelineError if a plot cannot be written to this path. Called before the work for it begins."""
    if not path.lower().endswith(".png"):
        raise PipelineError(f"{path}: a plot is a PNG file: its name must end in .png")
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise PipelineError(f"{path}: directory {directory} does not exist")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise PipelineError(f"{path}: the plot cannot be written")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PipelineError(f"a plot requires matplotlib: {install_command('spark')}") from None


def plot_over_time(
    path: str,
    title: str,
    series: Series,
    unit: str = "records",
    *,
    lower: Series | None = None,
    lower_unit: str = "bytes",
    width_ms: int | None = None,
    note: str = "",
) -> None:
    """Write a PNG with a chart of `series` and, if given, a second chart of `lower` below it.

    Times are milliseconds since 1970, shown in UTC. With `width_ms` each point is the start and the sum of a bucket of
    this length: the series are stacked, and a bucket without a point is zero. Without it, lines connect the points.
    Values of a unit that begins with "bytes" are labeled with KiB, MiB and so on. `note` is printed below the charts.

    Raises PipelineError if the path does not end in .png or cannot be written, matplotlib is missing, or no series
    has points.
    """
    check_plot_path(path)
    charts = [(series, unit)] + ([] if lower is None else [(lower, lower_unit)])
    if not any(points for chart_series, _ in charts for points in chart_series.values()):
        raise PipelineError(f"{path}: there is nothing to plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.2 + 3.4 * len(charts)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0])
    colours = _colours(name for chart_series, _ in charts for name in chart_series)
    for chart_axes, (chart_series, label) in zip(axes, charts, strict=True):
        _draw(chart_axes, chart_series, label, width_ms, colours)
    _label_times(axes[-1])
    axes[0].set_title(_label(title, MAX_LINE_CHARACTERS), loc="left", fontweight="bold", parse_math=False)
    _legend(axes)
    if note:
        figure.supxlabel(_label(note, MAX_LINE_CHARACTERS), fontsize="small", color="#555555", parse_math=False)
    _save(figure, path)


def _draw(axes: Any, series: Series, unit: str, width_ms: int | None, colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    if width_ms is None:
        for name, points in series.items():
            times, values = [_datetime(time_ms) for time_ms, _ in points], [value for _, value in points]
            axes.plot(times, values, color=colours[name], marker=".", label=_label(name))
    elif any(series.values()):
        _stack(axes, series, width_ms, colours)
        axes.set_ylim(bottom=0)
    if unit.startswith("bytes"):
        axes.yaxis.set_major_locator(FixedLocator(_binary_ticks(axes.get_ylim()[1])))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axes.set_ylabel(unit, parse_math=False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _stack(axes: Any, series: Series, width_ms: int, colours: Mapping[str, str]) -> None:
    """Draw stacked areas that are constant over each bucket. Runs of empty buckets need no points."""
    starts = {time_ms for points in series.values() for time_ms, _ in points}
    edges = sorted(starts | {time_ms + width_ms for time_ms in starts})
    rows = []
    for points in series.values():
        values = dict(points)
        rows.append([values.get(time_ms, 0.0) for time_ms in edges])
    axes.stackplot(
        [_datetime(time_ms) for time_ms in edges],
        rows,
        labels=[_label(name) for name in series],
        colors=[colours[name] for name in series],
        step="post",
        linewidth=0,
    )
    # Without a margin, a few buckets of any length would fill the width.
    margin = max(width_ms, width_ms * 10 - (edges[-1] - edges[0])) // 2
    axes.set_xlim(_datetime(edges[0] - margin), _datetime(edges[-1] + margin))


def _legend(axes: list[Any]) -> None:
    """Add one legend for all charts, which show the same names, to the right of them."""
    entries: dict[str, Any] = {}
    for chart_axes in axes:
        for handle, label in zip(*chart_axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    legend = axes[0].legend(
        list(entries.values()), list(entries), loc="upper left", bbox_to_anchor=(1.005, 1), frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _label_times(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)
    # For ticks that are years, months, days, hours, minutes, seconds apart.
    formats = ["%Y", "%b", "%b %d", "%H:%M", "%H:%M", "%H:%M:%S"]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC, formats=formats))
    axes.set_xlabel("time, UTC")


def _save(figure: Any, path: str) -> None:
    png = io.BytesIO()
    figure.savefig(png, format="png")
    try:
        with open(path, "wb") as file:
            file.write(png.getvalue())
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from None


def _colours(names: Iterable[str]) -> dict[str, str]:
    distinct = list(dict.fromkeys(names))
    return {name: _GREY if name.endswith(OTHERS) else _COLOURS[i % len(_COLOURS)] for i, name in enumerate(distinct)}


def _label(name: str, limit: int = MAX_NAME_CHARACTERS) -> str:
    """Return the name in a form that matplotlib can print.

    Legends omit names that begin with an underscore, and the font has no control characters.
    """
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    text = text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text or "(empty)"


def _datetime(time_ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(time_ms, 0), LAST_MS) / 1000, UTC)


def _number(value: float) -> str:
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == ' k' else limit):g}{unit}"
    return f"{value:g}"


def _binary_ticks(top: float) -> list[float]:
    """Return at most seven ticks from zero, a power of two apart, so that KiB and MiB are round numbers."""
    distance = 1.0
    while distance * 6 < top:
        distance *= 2
    return [distance * i for i in range(7) if distance * i <= top]


def _bytes(value: float) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.3g} {unit}"
    return f"{value:g} B"


def plot_archive(files_by_topic: Mapping[str, "Collection[DataFile]"], path: str, title: str) -> None:
    """Write a PNG with the records and bytes of topics.

    The rows of a file are distributed evenly over the time between its first and last timestamp. Raises PipelineError
    as plot_over_time does.
    """
    check_plot_path(path)
    dated = {topic: [file for file in files if file.from_ms >= 0] for topic, files in files_by_topic.items()}
    all_dated = [file for files in dated.values() for file in files]
    if not all_dated:
        raise PipelineError(f"{path}: there is nothing to plot, because no row has a timestamp")
    bucket = bucket_length(min(file.from_ms for file in all_dated), max(file.to_ms for file in all_dated))

    def series(amount: "Callable[[DataFile], int]") -> dict[str, Points]:
        return {
            topic: sum_by_bucket((SpanAmount(file.from_ms, file.to_ms, amount(file)) for file in files), bucket.ms)
            for topic, files in dated.items()
        }

    rows, data = series(lambda file: file.rows), series(lambda file: file.size)
    all_rows = sum(file.rows for files in files_by_topic.values() for file in files)
    undated = all_rows - sum(file.rows for file in all_dated)
    plot_over_time(
        path,
        title,
        largest_series(rows),
        f"records per {bucket.text}",
        lower=largest_series(data, by=rows),
        lower_unit=f"bytes per {bucket.text}",
        width_ms=bucket.ms,
        note=_footnote(undated),
    )


def _footnote(undated: int) -> str:
    omitted = f" Omitted: files with {undated} rows without a timestamp." if undated else ""
    return f"Bytes of files. The rows of a file are distributed evenly over the time that they span.{omitted}"
