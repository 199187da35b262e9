"""docs/cli.md is generated from the command tree."""

from pathlib import Path

import kbroker
from kbroker.cli.commands import COMMANDS
from kbroker.cli.reference import page

PAGE = Path(kbroker.__file__).parent.parent / "docs" / "cli.md"


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == page(), "run: python -m kbroker.cli.reference > docs/cli.md"


def test_every_command_and_argument_is_described() -> None:
    text = page()
    for name in COMMANDS:
        assert f"\n## kbroker {name}\n" in text
    assert "| `--to-datetime TIME` | To the first record at or after this time (ISO 8601, default UTC). |" in text
    assert "\nkbroker groups reset-offsets [OPTIONS] [GROUP...]\n" in text
    # Each example is a paragraph of its docstring.
    assert "Example:" not in text
    assert "\n# Example\nkbroker topics create orders --partitions 6" in text
