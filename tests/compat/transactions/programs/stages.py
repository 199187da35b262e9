"""How the programs let a test stop them at a certain moment. They are scripts, and import nothing of this project."""

import os
import select
import sys
from typing import NoReturn

GIVEN_UP = 3


class Arguments:
    """Of every program's command line."""

    def __init__(self) -> None:
        self.bootstrap, self.group, self.source, self.target, self.transactional_id = sys.argv[1:6]
        self.session_timeout_ms, self.transaction_timeout_ms = int(sys.argv[6]), int(sys.argv[7])


class Stages:
    """Prints each stage that is reached; a line on standard input names the one to wait in, for another line."""

    def __init__(self) -> None:
        self._stop_at = ""

    def take(self, member: object, offsets: dict[int, tuple[int, int]]) -> None:
        """Print which inputs the transaction has: of each partition, the first and the last offset. `member`: as what
        member of the group."""
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


def give_up(why: object) -> NoReturn:
    """For failures after which the documentation says that the producer has to be made anew."""
    print(f"gave up: {why}", flush=True)
    os._exit(GIVEN_UP)
