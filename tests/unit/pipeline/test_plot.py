"""Pictures over time: buckets, what falls into them, which names are shown, and the refusals."""

import builtins
import struct
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import plot
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.plot import Piece

MINUTE = 60_000
DAY = 86_400_000
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("range_ms", "text"),
    [(0, "second"), (149_999, "second"), (150_000, "5 seconds"), (3 * 3_600_000, "5 minutes"),
     (DAY, "15 minutes"), (30 * DAY, "6 hours"), (365 * DAY, "week"), (100 * 365 * DAY, "365 days"),
     (8000 * 365 * DAY, "3652 days")],
)  # fmt: skip
def test_a_bucket_is_as_short_as_fits_into_a_picture(range_ms: int, text: str) -> None:
    assert plot.step(0, range_ms).text == text


def test_steps_grow() -> None:
    lengths = [step.ms for step in plot.STEPS]
    assert lengths == sorted(set(lengths))


def test_an_amount_is_spread_evenly_over_the_time_it_spans() -> None:
    # 30 s of the first minute, all of the second, 15 s of the third
    piece = Piece(30_000, 2 * MINUTE + 14_999, 105)
    assert plot.spread([piece], MINUTE) == [(0, pytest.approx(30)), (MINUTE, pytest.approx(60)), (120_000, 15)]


def test_what_came_in_one_instant_is_in_one_bucket() -> None:
    assert plot.spread([Piece(119_999, 119_999, 7), Piece(120_000, 120_000, 1)], MINUTE) == [(60_000, 7), (120_000, 1)]


def test_nothing_is_lost_by_spreading() -> None:
    pieces = [Piece(n * 977, n * 977 + n * 31, n) for n in range(300)]
    for step in plot.STEPS[:8]:
        assert sum(value for _, value in plot.spread(pieces, step.ms)) == pytest.approx(sum(p.amount for p in pieces))


def test_many_names_are_those_with_most_and_the_others_together() -> None:
    series = {f"n{i}": [(0, float(i)), (10, 1.0)] for i in range(12)}
    shown = plot.largest(series, 3)
    assert list(shown) == ["n11", "n10", "10 others"]
    assert shown["10 others"] == [(0, float(sum(range(10)))), (10, 10.0)]
    flat: dict[str, plot.Points] = {name: [(0, 1.0)] for name in sorted(series)}
    assert list(plot.largest(flat, 3, by=series)) == list(shown)
    assert list(plot.largest(series, 12)) == [f"n{i}" for i in reversed(range(12))]


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_picture_with_two_charts_is_higher(tmp_path: Path) -> None:
    points = [(1_760_000_000_000 + n * MINUTE, float(n)) for n in range(50)]
    one, two = tmp_path / "one.png", tmp_path / "two.PNG"
    plot.over_time(str(one), "counts", {"a": points})
    plot.over_time(str(two), "counts", {"a": points}, lower={"a": points}, width_ms=MINUTE, note="as it is")
    assert size_of(one)[0] == size_of(two)[0]
    assert size_of(one)[1] < size_of(two)[1]


@pytest.mark.parametrize("name", ["_hidden", "$a$ $", "", "x" * 300, "new\nline", "$\\frac{1"])
@pytest.mark.filterwarnings("error")
def test_a_name_is_text(tmp_path: Path, name: str) -> None:
    plot.over_time(str(tmp_path / "p.png"), name, {name: [(0, 1.0)]}, width_ms=1000, note=name)
    assert size_of(tmp_path / "p.png")


def test_times_that_no_calendar_holds_are_drawn_at_the_edge(tmp_path: Path) -> None:
    plot.over_time(str(tmp_path / "p.png"), "t", {"a": [(-1, 1.0), (2**62, 1.0)]})
    plot.over_time(str(tmp_path / "p.png"), "t", {"a": [(-1000, 1.0), (2**62, 1.0)]}, width_ms=1000)


def test_ticks_of_bytes_are_powers_of_two_apart() -> None:
    assert plot._binary_ticks(190.0) == [0, 32, 64, 96, 128, 160]
    assert plot._binary_ticks(0.0) == [0]


@pytest.mark.parametrize(
    ("value", "records", "data"),
    [(0, "0", "0 B"), (950, "950", "950 B"), (20_000, "20 k", "19.5 KiB"), (1_500_000, "1.5 M", "1.43 MiB"),
     (2_000_000_000, "2 G", "1.86 GiB")],
)  # fmt: skip
def test_numbers_are_short(value: float, records: str, data: str) -> None:
    assert (plot._number(value), plot._bytes(value)) == (records, data)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"p\.pdf: a plot is a PNG file"):
        plot.over_time(str(tmp_path / "p.pdf"), "t", {"a": [(0, 1.0)]})


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no directory .*/absent$"):
        plot.over_time(str(tmp_path / "absent" / "p.png"), "t", {"a": [(0, 1.0)]})
    (tmp_path / "d.png").mkdir()
    with pytest.raises(PipelineError, match="cannot be written"):
        plot.over_time(str(tmp_path / "d.png"), "t", {"a": [(0, 1.0)]})


def test_a_full_disk_is_told() -> None:
    with pytest.raises(PipelineError, match=r"^/dev/full: No space left on device$"):
        plot._save(_Drawn(), "/dev/full")


class _Drawn:
    def savefig(self, file: Any, format: str) -> None:
        file.write(PNG)


def test_nothing_to_plot_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nothing to plot"):
        plot.over_time(str(tmp_path / "p.png"), "t", {"a": []}, lower={})
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(PipelineError, match=r"needs matplotlib: pip install 'kbroker\[spark\]'"):
        plot.over_time(str(tmp_path / "p.png"), "t", {"a": [(0, 1.0)]})
