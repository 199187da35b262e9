"""The rows of the table of ./scripts/bench."""

from scripts.benchmark.report import HEADING, row, summary


def test_a_row_has_the_processor_time_of_both_servers() -> None:
    figures = {"kbroker": [10.0, 30.0, 20.0], "kafka": [10.0, 10.0, 10.0], "control": [10.0, 10.0, 10.0]}
    used = {"kbroker": [1.5], "kafka": [3.0], "control": [3.0]}
    result = summary("produce", "records/s", "more", 1.0, figures)
    assert row(result).endswith("| **2.00** | ≥ 1.00 | 1.00 | | |")
    result["processor_time"] = summary("", "us/record", "less", None, used)
    line = row(result)
    assert line == (
        "| produce | 20.00 ±100% | 10.00 ±0% | records/s | **2.00** | ≥ 1.00 | 1.00 | 1.50 / 3.00 us/record | 0.50 |"
    )
    assert line.count("|") == HEADING.splitlines()[0].count("|")
