"""Clients of other languages in the stories of queues: programs that get commands as lines of JSON.

Each command has a response of one line. `op` is

- `produce`: `topic`, `records` (key, value, headers, timestamp), `transaction` (empty, commit or abort); returns
  `offsets`;
- `open`: a member of `group`, or without one a reader of `partition`, begins to read `topic`; `read_committed`;
- `poll`: returns `records` (offset, timestamp, value, headers) and the `position` or null, after half a second without
  records;
- `seek` to an `offset`, `seek_to_time` to a `timestamp`;
- `close`: commits and leaves the group.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.compat.queues.clients import Got, Sent
from tests.compat.support import DEADLINE_S


class ProgramClient:
    """`commits`, `commits_position`: as in Client."""

    def __init__(self, command: Sequence[str | Path], *, commits: bool = True, commits_position: bool = False) -> None:
        self.commits = commits
        self.commits_position = commits_position
        self._process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, op: str, **fields: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program has ended with {self._process.wait(DEADLINE_S)}; its errors are on standard error"
        response: dict[str, Any] = json.loads(line)
        return response

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        offsets: list[int] = self.ask("produce", topic=topic, transaction="", records=_fields(records))["offsets"]
        return offsets

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        self.ask("produce", topic=topic, transaction="commit" if commit else "abort", records=_fields(records))

    def reader(self, topic: str, group: str, read_committed: bool = False, partition: int = 0) -> "ProgramReader":
        fields = {"group": group if self.commits else "", "read_committed": read_committed, "partition": partition}
        self.ask("open", topic=topic, **fields)
        return ProgramReader(self)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _fields(records: Sequence[Sent]) -> list[dict[str, object]]:
    return [{"key": r.key, "value": r.value, "headers": r.headers, "timestamp": r.timestamp_ms} for r in records]


class ProgramReader:
    def __init__(self, client: ProgramClient) -> None:
        self._client = client
        self._position: int | None = 0

    def poll(self) -> list[Got]:
        polled = self._client.ask("poll")
        self._position = polled["position"]
        return [
            Got(r["offset"], r["timestamp"], r["value"], dict(map(tuple, r["headers"] or [])))
            for r in polled["records"] or []
        ]

    def position(self) -> int | None:
        return self._position

    def seek(self, offset: int) -> None:
        self._client.ask("seek", offset=offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        self._client.ask("seek_to_time", timestamp=timestamp_ms)

    def close(self) -> None:
        self._client.ask("close")
