"""Transcripts of a broker under faults: commands and their output.

Each runs on a simulated machine, with one seed and in virtual time. script.py describes the format; nodes.py, files.py,
records.py and groups.py define the commands.

    pytest tests/unit/simulation/transcripts --rewrite

writes the current output into the files. Review the diff: each changed line is a change of the broker's behaviour.
"""

from pathlib import Path

import pytest

from tests.unit.simulation.transcripts import files, groups, nodes, records, script
from tests.unit.simulation.transcripts.play import Play
from tests.unit.simulation.transcripts.table import Table

TABLES: tuple[Table, ...] = (nodes.COMMANDS, files.COMMANDS, records.COMMANDS, groups.COMMANDS)
TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text()
    with Play(TABLES) as play:
        output = play.run(expected)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(output)
    else:
        assert output == expected


def test_output_is_compared() -> None:
    with Play(TABLES) as play:
        assert play.run("start\n----\nother output\n") == "start\n----\nserving\n"


def test_rendering_keeps_comments_and_commands() -> None:
    text = "# A comment.\nstart\n# Another.\nkill\n----\nserving\n\n# The end.\nls\n----\nno such directory\n"
    assert script.render(script.parse(text)) == text


def test_an_unknown_command_is_an_error() -> None:
    with Play(TABLES) as play, pytest.raises(LookupError):
        play.run("start now\n")
