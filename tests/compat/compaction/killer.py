"""Kills a broker, or only its cleaner process, during compaction."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.support import BrokerProcess, eventually

# Signs of a compaction: its process, or files in the directory of the partition.
CHILD, CLEANED, SWAP = "cleaner process", ".cleaned", ".swap"
# The longest random delay after the sign in seconds, so that kills come at any moment of a compaction.
_MAX_DELAY_S = {CHILD: 0.4, CLEANED: 0.1, SWAP: 0.0}
# A `.swap` file may exist for less than one poll interval: after this time any sign will do.
_SIGN_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.0005


@dataclass
class Kill:
    """A kill of the broker, or only of its cleaner; `signs`: the signs of a compaction at that moment."""

    waited_for: str
    only_cleaner: bool
    signs: list[str]

    def __str__(self) -> str:
        victim = "only the cleaner process" if self.only_cleaner else "the broker"
        signs = ", ".join(self.signs) if self.signs else "none"
        return f"{victim}, after {self.waited_for}; signs of a compaction at the kill: {signs}"


@dataclass
class Killer:
    """Kills the broker while it compacts the partition in `directory`."""

    broker: BrokerProcess
    directory: Path
    chance: random.Random
    kills: list[Kill] = field(default_factory=list)
    _orphans: list[int] = field(default_factory=list)

    def kill(self, wait_for: str) -> None:
        """Kill the broker (kill -9) at a random moment of a compaction."""
        self._wait_for_compaction(wait_for)
        self.broker.freeze()
        cleaners = self.cleaners()
        self.broker.kill()
        self._record(wait_for, False, cleaners)
        self._orphans = cleaners

    def kill_cleaner(self) -> None:
        """Kill the cleaner process (kill -9) at a random moment of a compaction."""
        while True:
            self._wait_for_compaction(CHILD)
            cleaners = self.cleaners()
            if cleaners:
                break
        self._record(CHILD, True, cleaners)
        for pid in cleaners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_no_orphans(self) -> None:
        eventually(lambda: not any(map(_is_running, self._orphans)), "the end of the dead broker's cleaner")

    def cleaners(self) -> list[int]:
        """Return the ids of the broker's running child processes."""
        pids = []
        for path in Path(f"/proc/{self.broker.pid}/task").glob("*/children"):
            with suppress(OSError):
                pids += [int(pid) for pid in path.read_text().split()]
        return [pid for pid in pids if _is_running(pid)]

    def _wait_for_compaction(self, wait_for: str) -> None:
        try:
            eventually(
                lambda: self._is_seen(wait_for),
                f"{wait_for} of a compaction",
                _SIGN_TIMEOUT_S,
                interval=_POLL_INTERVAL_S,
            )
        except AssertionError:
            eventually(
                lambda: self._is_seen(CHILD) or self._is_seen(CLEANED), "a compaction", interval=_POLL_INTERVAL_S
            )
        # Not a wait for a condition: the kill is to come at any moment.
        time.sleep(self.chance.uniform(0, _MAX_DELAY_S[wait_for]))

    def _is_seen(self, sign: str) -> bool:
        return bool(self.cleaners()) if sign == CHILD else any(name.endswith(sign) for name in self._file_names())

    def _file_names(self) -> list[str]:
        return os.listdir(self.directory)

    def _record(self, waited_for: str, only_cleaner: bool, cleaners: list[int]) -> None:
        files = {suffix for suffix in (CLEANED, SWAP) for name in self._file_names() if name.endswith(suffix)}
        self.kills.append(Kill(waited_for, only_cleaner, [CHILD] * bool(cleaners) + sorted(files)))


def _is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
