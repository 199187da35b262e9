"""Kafka Streams applications with the streams protocol: instances as processes, and their topics."""

from collections.abc import Sequence
from pathlib import Path

from tests.compat.java_programs import classpath_of, java_command
from tests.compat.support import eventually
from tests.compat.transactions.java_client import jar
from tests.compat.transactions.processes import Program

PROGRAM = Path(__file__).parent / "programs" / "Application.java"


def application_command() -> list[str]:
    return java_command("Application", classpath_of(PROGRAM, jar("kafka-streams", "4.4.0")))


class Instance(Program):
    """An instance of an application: one process with one thread."""

    def __init__(
        self, command: Sequence[str], bootstrap: str, application: str, kind: str, directory: Path, *settings: str
    ) -> None:
        super().__init__([*command, bootstrap, application, kind, str(directory / "state"), *settings], directory)

    def tasks(self) -> tuple[set[str], set[str]]:
        """Return the ids of its active and its standby tasks."""
        before = self.line_counts()["tasks"]
        self._send_line("tasks")
        eventually(lambda: self.line_counts()["tasks"] > before, f"the tasks of {self.name}", progress=self.tail)
        line = [line for line in self.lines() if line.startswith("tasks: ")][-1]
        active, standby = line.removeprefix("tasks: [").removesuffix("]").split("] [")
        return set(active.split(", ")) - {""}, set(standby.split(", ")) - {""}

    def leave(self) -> None:
        """End its threads; it leaves the group."""
        self._send_line("leave")
        self.wait_for("not_running")

    def wait_for(self, line: str) -> None:
        """Wait until it has printed a line since its last start, up to a colon."""
        eventually(
            lambda: any(each.partition(":")[0] == line for each in self._output().read_text().splitlines()),
            f"{line} of {self.name}",
            progress=self.tail,
        )

    def failure(self) -> str:
        self.wait_for("failed")
        (line,) = {line for line in self._output().read_text().splitlines() if line.startswith("failed: ")}
        return line.removeprefix("failed: ")
