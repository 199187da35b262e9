"""Tables, headings and JSON."""

import json

import pytest

from kbroker.cli.common.output import align, print_heading, print_json, print_table


def test_a_table_in_a_pipe_is_aligned_columns_with_numbers_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("topic", "lag", "client id"), [["a", 5, None], ["longer", 1000, "x"]])
    assert capsys.readouterr().out == (
        "TOPIC    LAG  CLIENT_ID\n"
        "a          5  -\n"
        "longer  1000  x\n"
    )  # fmt: skip


def test_an_empty_table_has_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "lag"), [])
    assert capsys.readouterr().out == "TOPIC  LAG\n"


def test_no_line_ends_in_blanks() -> None:
    assert align([["a", "b"], ["ccc", ""]], [False, False]) == "a    b\nccc"


def test_a_table_on_a_terminal_is_drawn_by_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    print_heading("orders", "3 partitions")
    print_table(("topic", "lag"), [["[red]a[/red]", 5], ["b", None]])
    output = capsys.readouterr().out
    assert "─" in output
    assert "[red]a[/red]" in output  # not interpreted as rich markup


def test_json_is_not_escaped_to_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"näme": [1, None]})
    output = capsys.readouterr().out
    assert "näme" in output
    assert json.loads(output) == {"näme": [1, None]}


def test_a_heading_in_a_pipe_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_heading("a", "b")
    print_heading("a")
    assert capsys.readouterr().out == "a  b\na\n"
