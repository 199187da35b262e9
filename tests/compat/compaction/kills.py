"""Killing a broker, or its cleaner alone, while it compacts."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.support import BrokerProcess, eventually

# What is waited for before a kill; which files stand in the directory of a partition that is being compacted.
CHILD, CLEANED, SWAP = "its process", ".cleaned", ".swap"
# The longest time that is let go by then, so that kills come at any moment of a compaction; seconds.
_LATER = {CHILD: 0.4, CLEANED: 0.1, SWAP: 0.0}
# A `.swap` may be there for less than a look takes.
_PATIENCE = 5.0
_LOOK = 0.0005


@dataclass
class Kill:
    """One of the broker, or of its `child` alone; `found`: what of a compaction was there at that moment."""

    waited_for: str
    child: bool
    found: list[str]

    def __str__(self) -> str:
        who = "the cleaner's process alone" if self.child else "the broker"
        what = ", ".join(self.found) if self.found else "no compaction any more"
        return f"{who}, {self.waited_for} was seen; under way: {what}"


@dataclass
class Killer:
    """Kills the broker while it compacts one partition, whose directory is given."""

    broker: BrokerProcess
    directory: Path
    chance: random.Random
    kills: list[Kill] = field(default_factory=list)
    _orphans: list[int] = field(default_factory=list)

    def kill(self, wait_for: str) -> None:
        """kill -9 of the broker at a random moment of a compaction. Its cleaner must end with it."""
        self._catch(wait_for)
        self.broker.freeze()
        cleaners = self.cleaners()
        self.broker.kill()
        self._count(wait_for, False, cleaners)
        self._orphans = cleaners

    def kill_cleaner(self) -> None:
        """kill -9 of the cleaner's process at a random moment; the broker has to go on."""
        while True:
            self._catch(CHILD)
            cleaners = self.cleaners()
            if cleaners:
                break
        self._count(CHILD, True, cleaners)
        for pid in cleaners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_no_orphans(self) -> None:
        eventually(lambda: not any(map(_running, self._orphans)), "the dead broker's cleaner to end")

    def cleaners(self) -> list[int]:
        """Processes that the broker has started and that run."""
        found = []
        for path in Path(f"/proc/{self.broker.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(pid) for pid in path.read_text().split()]
        return [pid for pid in found if _running(pid)]

    def _catch(self, wait_for: str) -> None:
        try:
            eventually(lambda: self._seen(wait_for), f"{wait_for} of a compaction", _PATIENCE, interval=_LOOK)
        except AssertionError:
            eventually(lambda: self._seen(CHILD) or self._seen(CLEANED), "a compaction", interval=_LOOK)
        # No condition: what is wanted is any moment.
        time.sleep(self.chance.uniform(0, _LATER[wait_for]))

    def _seen(self, what: str) -> bool:
        return bool(self.cleaners()) if what == CHILD else any(name.endswith(what) for name in self._listed())

    def _listed(self) -> list[str]:
        return os.listdir(self.directory)

    def _count(self, waited_for: str, child: bool, cleaners: list[int]) -> None:
        files = {suffix for suffix in (CLEANED, SWAP) for name in self._listed() if name.endswith(suffix)}
        self.kills.append(Kill(waited_for, child, [CHILD] * bool(cleaners) + sorted(files)))


def _running(pid: int) -> bool:
    """Not ended, and no zombie that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
