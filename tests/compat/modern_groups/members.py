"""Members of groups in programs of other languages, which get commands as lines of JSON.

Each command has the name of a `member`, and a response of one line. `op` is

- `open`: the member joins `group`, a consumer group or with `share` a share group, for a `topic` or a `pattern`;
  `instance`: its instance id;
- `poll`: returns `records` (topic, partition, offset, value, deliveries), none after about 200 ms;
- `partitions`: returns the `partitions` of a member of a consumer group, as topic:partition;
- `commit`: commits what was polled;
- `acknowledge`: the records of the last poll, by value as in `acks`, the others as accepted;
- `close`: the member leaves.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.compat.support import DEADLINE_S
from tests.compat.toolchains import go_program, rust_program

HERE = Path(__file__).parent

RELEASE, REJECT = 2, 3


class Got(NamedTuple):
    """A record as a member received it. `deliveries`: 0 in a consumer group."""

    topic: str
    partition: int
    offset: int
    value: str
    deliveries: int


class Members:
    """A program with the members of a test."""

    def __init__(self, program: Path, bootstrap: str) -> None:
        self._process = subprocess.Popen([program, bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def open(self, name: str, group: str, **fields: object) -> "Member":
        member = Member(self, name)
        member.ask("open", group=group, **fields)
        return member

    def ask(self, op: str, member: str, **fields: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, "member": member, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program has ended with {self._process.wait(DEADLINE_S)}; its errors are on standard error"
        response: dict[str, Any] = json.loads(line)
        return response

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Member:
    def __init__(self, members: Members, name: str) -> None:
        self._members = members
        self._name = name

    def ask(self, op: str, **fields: object) -> dict[str, Any]:
        return self._members.ask(op, self._name, **fields)

    def poll(self) -> list[Got]:
        return [Got(**record) for record in self.ask("poll")["records"]]

    def partitions(self) -> set[str]:
        """Return the member's partitions, after a poll, in which clients call their callbacks."""
        return set(self.ask("partitions")["partitions"])

    def commit(self) -> None:
        self.ask("commit")

    def acknowledge(self, acks: Mapping[str, int]) -> None:
        self.ask("acknowledge", acks=dict(acks))

    def close(self) -> None:
        self.ask("close")


def go(directory: Path) -> Path:
    return go_program(HERE / "go", directory / "groups")


def rust(_: Path) -> Path:
    return rust_program("modern_groups")
