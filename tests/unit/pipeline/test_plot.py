"""Plots over time: bucket lengths and sums, the number of series, labels, errors."""

import builtins
import struct
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import plot
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.plot import SpanAmount

MINUTE = 60_000
DAY = 86_400_000
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("range_ms", "text"),
    [(0, "second"), (149_999, "second"), (150_000, "5 seconds"), (3 * 3_600_000, "5 minutes"),
     (DAY, "15 minutes"), (30 * DAY, "6 hours"), (365 * DAY, "week"), (100 * 365 * DAY, "365 days"),
     (8000 * 365 * DAY, "3652 days")],
)  # fmt: skip
def test_a_bucket_is_as_short_as_the_number_of_buckets_allows(range_ms: int, text: str) -> None:
    assert plot.bucket_length(0, range_ms).text == text


def test_bucket_lengths_ascend() -> None:
    lengths = [length.ms for length in plot.BUCKET_LENGTHS]
    assert lengths == sorted(set(lengths))


def test_an_amount_is_distributed_evenly_over_its_time_span() -> None:
    # 30 s of the first minute, all of the second, 15 s of the third
    amount = SpanAmount(30_000, 2 * MINUTE + 14_999, 105)
    assert plot.sum_by_bucket([amount], MINUTE) == [(0, pytest.approx(30)), (MINUTE, pytest.approx(60)), (120_000, 15)]


def test_an_amount_of_one_millisecond_is_in_one_bucket() -> None:
    assert plot.sum_by_bucket([SpanAmount(119_999, 119_999, 7), SpanAmount(120_000, 120_000, 1)], MINUTE) == [
        (60_000, 7),
        (120_000, 1),
    ]


def test_buckets_add_up_to_the_amounts() -> None:
    amounts = [SpanAmount(n * 977, n * 977 + n * 31, n) for n in range(300)]
    total = sum(span.amount for span in amounts)
    for length in plot.BUCKET_LENGTHS[:8]:
        assert sum(value for _, value in plot.sum_by_bucket(amounts, length.ms)) == pytest.approx(total)


def test_the_largest_series_are_plotted_and_the_others_added_up() -> None:
    series = {f"n{i}": [(0, float(i)), (10, 1.0)] for i in range(12)}
    shown = plot.largest_series(series, 3)
    assert list(shown) == ["n11", "n10", "10 others"]
    assert shown["10 others"] == [(0, float(sum(range(10)))), (10, 10.0)]
    flat: dict[str, plot.Points] = {name: [(0, 1.0)] for name in sorted(series)}
    assert list(plot.largest_series(flat, 3, by=series)) == list(shown)
    assert list(plot.largest_series(series, 12)) == [f"n{i}" for i in reversed(range(12))]


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_plot_with_two_charts_is_higher(tmp_path: Path) -> None:
    points = [(1_760_000_000_000 + n * MINUTE, float(n)) for n in range(50)]
    first, second = tmp_path / "one.png", tmp_path / "two.PNG"
    plot.plot_over_time(str(first), "counts", {"a": points})
    plot.plot_over_time(str(second), "counts", {"a": points}, lower={"a": points}, width_ms=MINUTE, note="as it is")
    assert size_of(first)[0] == size_of(second)[0]
    assert size_of(first)[1] < size_of(second)[1]


@pytest.mark.parametrize("name", ["_hidden", "$a$ $", "", "x" * 300, "new\nline", "$\\frac{1"])
@pytest.mark.filterwarnings("error")
def test_names_are_printed_literally(tmp_path: Path, name: str) -> None:
    plot.plot_over_time(str(tmp_path / "p.png"), name, {name: [(0, 1.0)]}, width_ms=1000, note=name)
    assert size_of(tmp_path / "p.png")


def test_times_outside_of_the_calendar_are_drawn_at_the_edge(tmp_path: Path) -> None:
    plot.plot_over_time(str(tmp_path / "p.png"), "t", {"a": [(-1, 1.0), (2**62, 1.0)]})
    plot.plot_over_time(str(tmp_path / "p.png"), "t", {"a": [(-1000, 1.0), (2**62, 1.0)]}, width_ms=1000)


def test_ticks_of_bytes_are_powers_of_two_apart() -> None:
    assert plot._binary_ticks(190.0) == [0, 32, 64, 96, 128, 160]
    assert plot._binary_ticks(0.0) == [0]


@pytest.mark.parametrize(
    ("value", "records", "data"),
    [(0, "0", "0 B"), (950, "950", "950 B"), (20_000, "20 k", "19.5 KiB"), (1_500_000, "1.5 M", "1.43 MiB"),
     (2_000_000_000, "2 G", "1.86 GiB")],
)  # fmt: skip
def test_number_and_byte_labels(value: float, records: str, data: str) -> None:
    assert (plot._number(value), plot._bytes(value)) == (records, data)


def test_another_file_name_extension_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"p\.pdf: a plot is a PNG file"):
        plot.plot_over_time(str(tmp_path / "p.pdf"), "t", {"a": [(0, 1.0)]})


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"directory .*/absent does not exist$"):
        plot.plot_over_time(str(tmp_path / "absent" / "p.png"), "t", {"a": [(0, 1.0)]})
    (tmp_path / "d.png").mkdir()
    with pytest.raises(PipelineError, match="cannot be written"):
        plot.plot_over_time(str(tmp_path / "d.png"), "t", {"a": [(0, 1.0)]})


def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"^/dev/full: No space left on device$"):
        plot._save(_Figure(), "/dev/full")


class _Figure:
    def savefig(self, file: Any, format: str) -> None:
        file.write(PNG)


def test_nothing_to_plot_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nothing to plot"):
        plot.plot_over_time(str(tmp_path / "p.png"), "t", {"a": []}, lower={})
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def import_without_matplotlib(name: str, *args: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", import_without_matplotlib)
    with pytest.raises(PipelineError, match=r"requires matplotlib: pip install .*matplotlib"):
        plot.plot_over_time(str(tmp_path / "p.png"), "t", {"a": [(0, 1.0)]})
