"""Groups respond as those of Apache Kafka 4.4.0 in recorded scenarios, played in virtual time."""

import re
from pathlib import Path

import pytest

from tests.unit.support import group_transcript as transcript
from tests.unit.support.group_coordinator import Harness

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").rglob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_responses_are_those_of_apache_kafka(path: Path) -> None:
    recorded = path.read_text()
    configs = re.findall(r"^#! (\S+)=(\S+)$", recorded, re.MULTILINE)
    values = {name.replace(".", "_"): int(text) if text.isdigit() else (text,) for name, text in configs}
    harness = Harness(**values)
    try:
        assert transcript.run(recorded, harness) == recorded
    finally:
        harness.close()
