"""Lets a test stop a program at a stage. The programs are scripts that import nothing of this project."""

import os
import select
import sys
from typing import NoReturn

GIVEN_UP = 3


class Arguments:
    """The command line of every program."""

    def __init__(self) -> None:
        self.bootstrap, self.group, self.source, self.target, self.transactional_id = sys.argv[1:6]
        self.session_timeout_ms, self.transaction_timeout_ms = int(sys.argv[6]), int(sys.argv[7])
        # The clients' default is 30 s, or 60 s with librdkafka: longer than the transaction timeout.
        self.request_timeout_ms = int(sys.argv[8])


class Stages:
    """Prints each stage. A line on standard input names the stage to stop at; the next line resumes."""

    def __init__(self) -> None:
        self._stop_at = ""

    def take(self, member: object, offsets: dict[int, tuple[int, int]]) -> None:
        """Print the inputs of the transaction: the first and the last offset by partition. `member`: the member id or
        generation."""
        ranges = " ".join(f"{partition}:{first}-{last}" for partition, (first, last) in offsets.items())
        print(f"took as {member}: {ranges}", flush=True)

    def reach(self, stage: str) -> None:
        if select.select([sys.stdin], [], [], 0)[0]:
            self._stop_at = sys.stdin.readline().strip()
        if stage == self._stop_at:
            print(f"stopped {stage}", flush=True)
            self._stop_at = ""
            sys.stdin.readline()
        print(stage, flush=True)


def give_up(reason: object) -> NoReturn:
    """End after an error for which the documentation requires a new producer."""
    print(f"gave up: {reason}", flush=True)
    os._exit(GIVEN_UP)
