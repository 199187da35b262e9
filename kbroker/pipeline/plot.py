"""PNG pictures of what happened over time. Draws with matplotlib, which is imported only when something is drawn."""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kbroker.pipeline.errors import PipelineError

Points = Sequence[tuple[int, float]]  # (time_ms, value), ascending
Series = Mapping[str, Points]

MOST_BUCKETS = 150
MOST_SERIES = 8  # more colours than that nobody tells apart
OTHERS = "others"
LONGEST_NAME = 40
LONGEST_LINE = 110
# What lies before 1970 or after this is drawn at the edge: calendars end with the year 9999, and charts have margins.
LAST_MS = 221_845_392_000_000  # the beginning of the year 9000

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
# Okabe and Ito's colours, which colour-blind people tell apart too; the yellow is left out, for it is faint on white.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#5F4690", "#000000")
_GREY = "#999999"


class Step(NamedTuple):
    """How long a bucket is."""

    ms: int
    text: str  # "5 minutes"


class Piece(NamedTuple):
    """An amount that came somewhere between two times, both included."""

    from_ms: int
    to_ms: int
    amount: float


STEPS = (
    Step(_SECOND, "second"), Step(5 * _SECOND, "5 seconds"), Step(15 * _SECOND, "15 seconds"),
    Step(_MINUTE, "minute"), Step(5 * _MINUTE, "5 minutes"), Step(15 * _MINUTE, "15 minutes"),
    Step(_HOUR, "hour"), Step(3 * _HOUR, "3 hours"), Step(6 * _HOUR, "6 hours"), Step(12 * _HOUR, "12 hours"),
    Step(_DAY, "day"), Step(2 * _DAY, "2 days"), Step(7 * _DAY, "week"), Step(28 * _DAY, "4 weeks"),
    Step(91 * _DAY, "91 days"), Step(365 * _DAY, "365 days"), Step(3652 * _DAY, "3652 days"),
)  # fmt: skip


def step(from_ms: int, to_ms: int) -> Step:
    """The shortest bucket of which at most MOST_BUCKETS reach from one time to the other."""
    for one in STEPS:
        if to_ms // one.ms - from_ms // one.ms < MOST_BUCKETS:
            return one
    return STEPS[-1]


def spread(pieces: Iterable[Piece], step_ms: int) -> list[tuple[int, float]]:
    """The amounts by bucket: (its start, the amount), ascending. A piece counts evenly over the time it spans."""
    buckets: dict[int, float] = {}
    for from_ms, to_ms, amount in pieces:
        per_ms = amount / (to_ms + 1 - from_ms)
        for start in range(from_ms // step_ms * step_ms, to_ms + 1, step_ms):
            within = min(to_ms + 1, start + step_ms) - max(from_ms, start)
            buckets[start] = buckets.get(start, 0.0) + per_ms * within
    return sorted(buckets.items())


def largest(series: Series, most: int = MOST_SERIES, by: Series | None = None) -> dict[str, Points]:
    """The series with the largest sums, largest first; the rest is added up under the name of OTHERS.

    `by`: the sums are of these series of the same names, so that two charts show the same ones.
    """
    by = series if by is None else by
    ordered = sorted(series, key=lambda name: (-sum(value for _, value in by[name]), name))
    if len(ordered) <= most:
        return {name: series[name] for name in ordered}
    rest: dict[int, float] = {}
    for name in ordered[most - 1 :]:
        for time_ms, value in series[name]:
            rest[time_ms] = rest.get(time_ms, 0.0) + value
    shown = {name: series[name] for name in ordered[: most - 1]}
    return {**shown, f"{len(ordered) - most + 1} {OTHERS}": sorted(rest.items())}


def require(path: str) -> None:
    """Refuses what over_time would refuse after the work is done: PipelineError, one sentence."""
    if not path.lower().endswith(".png"):
        raise PipelineError(f"{path}: a plot is a PNG file, so its name has to end in .png")
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise PipelineError(f"{path}: there is no directory {directory}")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise PipelineError(f"{path}: the plot cannot be written there")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PipelineError("a plot needs matplotlib: pip install 'kbroker[spark]'") from None


def over_time(
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
    """Writes a PNG with one chart of `series`, and below it one of `lower` where that is given.

    Times are milliseconds since 1970, shown in UTC. With `width_ms` a point is what came in so long a bucket from
    its time on: the series are stacked, and a bucket without a point is zero. Without it, points are joined by
    lines. A unit that begins with "bytes" is written in KiB, MiB and so on. `note` stands small below the charts.

    Raises PipelineError: another ending than .png, no matplotlib, a file that cannot be written, nothing to show.
    """
    require(path)
    charts = [(series, unit)] + ([] if lower is None else [(lower, lower_unit)])
    if not any(points for shown, _ in charts for points in shown.values()):
        raise PipelineError(f"{path}: there is nothing to plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.2 + 3.4 * len(charts)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0])
    colours = _colours(name for shown, _ in charts for name in shown)
    for one, (shown, label) in zip(axes, charts, strict=True):
        _draw(one, shown, label, width_ms, colours)
    _label_times(axes[-1])
    axes[0].set_title(_safe(title, LONGEST_LINE), loc="left", fontweight="bold", parse_math=False)
    _legend(axes)
    if note:
        figure.supxlabel(_safe(note, LONGEST_LINE), fontsize="small", color="#555555", parse_math=False)
    _save(figure, path)


def _draw(axes: Any, series: Series, unit: str, width_ms: int | None, colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    if width_ms is None:
        for name, points in series.items():
            times, values = [_moment(time_ms) for time_ms, _ in points], [value for _, value in points]
            axes.plot(times, values, color=colours[name], marker=".", label=_safe(name))
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
    """Areas upon each other, flat over each bucket; only buckets with a point and the ends of them are drawn."""
    starts = {time_ms for points in series.values() for time_ms, _ in points}
    edges = sorted(starts | {time_ms + width_ms for time_ms in starts})
    rows = []
    for points in series.values():
        values = dict(points)
        rows.append([values.get(time_ms, 0.0) for time_ms in edges])
    axes.stackplot(
        [_moment(time_ms) for time_ms in edges],
        rows,
        labels=[_safe(name) for name in series],
        colors=[colours[name] for name in series],
        step="post",
        linewidth=0,
    )
    # A few buckets would fill the width, and nobody would see how short they are.
    margin = max(width_ms, width_ms * 10 - (edges[-1] - edges[0])) // 2
    axes.set_xlim(_moment(edges[0] - margin), _moment(edges[-1] + margin))


def _legend(axes: list[Any]) -> None:
    """One for all charts, since they show the same names; to the right, where it hides nothing."""
    entries: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    legend = axes[0].legend(
        list(entries.values()), list(entries), loc="upper left", bbox_to_anchor=(1.005, 1), frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _label_times(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)
    # By what changes from tick to tick: years, months, days, hours, minutes, seconds.
    formats = ["%Y", "%b", "%b %d", "%H:%M", "%H:%M", "%H:%M:%S"]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC, formats=formats))
    axes.set_xlabel("time, UTC")


def _save(figure: Any, path: str) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    try:
        with open(path, "wb") as file:
            file.write(picture.getvalue())
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror or error}") from None


def _colours(names: Iterable[str]) -> dict[str, str]:
    distinct = list(dict.fromkeys(names))
    return {name: _GREY if name.endswith(OTHERS) else _COLOURS[i % len(_COLOURS)] for i, name in enumerate(distinct)}


def _safe(name: str, longest: int = LONGEST_NAME) -> str:
    """matplotlib leaves out of a legend what begins with an underscore, and the font has no control characters."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown or "(empty)"


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(time_ms, 0), LAST_MS) / 1000, UTC)


def _number(value: float) -> str:
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == ' k' else limit):g}{unit}"
    return f"{value:g}"


def _binary_ticks(top: float) -> list[float]:
    """At most seven from zero on, a power of two apart, so that KiB and MiB have round numbers."""
    apart = 1.0
    while apart * 6 < top:
        apart *= 2
    return [apart * i for i in range(7) if apart * i <= top]


def _bytes(value: float) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.3g} {unit}"
    return f"{value:g} B"
