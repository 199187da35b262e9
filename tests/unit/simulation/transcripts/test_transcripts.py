"""Stories of a broker that meets with an accident, as transcripts: commands and what they must print.

Each plays on a machine of the simulation, with one seed and in virtual time; script.py says what a transcript looks
like, and the tables in nodes.py, files.py, records.py and groups.py what can be said in it.

    pytest tests/unit/simulation/transcripts --rewrite

writes what is printed now into the files. Then read the diff: each line that has changed is a claim about the broker.
"""

from pathlib import Path

import pytest

from tests.unit.simulation.transcripts import files, groups, nodes, records, script
from tests.unit.simulation.transcripts.play import Play
from tests.unit.simulation.transcripts.table import Table

TABLES: tuple[Table, ...] = (nodes.COMMANDS, files.COMMANDS, records.COMMANDS, groups.COMMANDS)
TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_story(path: Path, request: pytest.FixtureRequest) -> None:
    said = path.read_text()
    with Play(TABLES) as play:
        printed = play.tell(said)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(printed)
    else:
        assert printed == said


def test_what_is_printed_is_compared() -> None:
    with Play(TABLES) as play:
        assert play.tell("start\n----\nnot what it says\n") == "start\n----\nserving\n"


def test_comments_and_commands_stay_as_they_are() -> None:
    told = "# A comment.\nstart\n# Another.\nkill\n----\nserving\n\n# The end.\nls\n----\nno such directory\n"
    assert script.render(script.parse(told)) == told


def test_an_unknown_command_is_an_error() -> None:
    with Play(TABLES) as play, pytest.raises(LookupError):
        play.tell("start now\n")
