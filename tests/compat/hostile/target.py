"""The broker that is attacked, and what an attack may do to it and to others.

`Target.attacked()` is around every attack. During it the bystander's round trips may take twice as long as they would,
the middle one and the one in a hundred; the broker's resident memory may grow by 64 MiB at its peak; afterwards it has
as many sockets as before.

How long they would take is what they took just before, or what those of a second bystander take meanwhile, whose broker
nobody attacks: an attack needs processors itself, the tests share two of them with whatever else there is, and that is
not the broker's doing.
"""

import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.compat.hostile.bystander import TRIP
from tests.compat.hostile.peer import create_topic
from tests.compat.support import BrokerProcess, eventually

MIB = 1 << 20
MOST_GROWTH = 64 * MIB
MOST_RATIO = 2.0
# So many round trips before an attack, and as many at least during it: one that is over sooner is repeated.
TRIPS = 60
# One in a hundred is late on a busy machine for reasons of its own: up to here nobody is to blame.
LATE_MS = 15.0
# An attack is repeated so often, since the machine has other work too; what counts is its best round.
ROUNDS = 3
# KBROKER_COMPAT_THOROUGH=1: everything of what is otherwise a sample.
THOROUGH = os.environ.get("KBROKER_COMPAT_THOROUGH", "") not in ("", "0")
# A file to which the effect of every round is written.
REPORT = os.environ.get("KBROKER_COMPAT_REPORT", "")
BYSTANDERS_TOPIC = "bystander"


@dataclass
class Effect:
    """Of one round: what the bystander's round trips took (ms), before and during; meanwhile, those of the one whose
    broker is left alone; and how memory grew (bytes)."""

    before: list[float]
    during: list[float]
    apart: list[float]
    growth: int

    @property
    def median_ratio(self) -> float:
        usual = max(statistics.median(self.before), statistics.median(self.apart))
        return statistics.median(self.during) / usual

    @property
    def p99_ratio(self) -> float:
        return p99(self.during) / max(p99(self.before), p99(self.apart), LATE_MS / MOST_RATIO)

    def __str__(self) -> str:
        return (
            f"median {statistics.median(self.before):.2f} -> {statistics.median(self.during):.2f} ms "
            f"(apart {statistics.median(self.apart):.2f}, ratio {self.median_ratio:.2f}), "
            f"p99 {p99(self.before):.2f} -> {p99(self.during):.2f} ms (apart {p99(self.apart):.2f}), "
            f"{len(self.during)} round trips, memory +{self.growth / MIB:.1f} MiB"
        )


_PAUSE = threading.Event()  # never set


def pace(ms: float = 1.0) -> None:
    """What keeps an attacker from being a mere load on the machine, which would be everybody's fault."""
    _PAUSE.wait(ms / 1000)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


class Watch:
    """A bystander of a broker, and its round trips so far: when each was due (ns), what it took (ms)."""

    def __init__(self, bootstrap: str) -> None:
        create_topic(bootstrap, BYSTANDERS_TOPIC)
        self.trips: list[tuple[int, float]] = []
        command = [sys.executable, "-m", "tests.compat.hostile.bystander", bootstrap, BYSTANDERS_TOPIC]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := self._process.stdout.read(TRIP.size):
            due, took = TRIP.unpack(data)
            self.trips.append((due, took / 1e6))

    def wait(self, count: int) -> list[float]:
        """So many more, and what they took."""
        since = len(self.trips)

        def enough() -> bool:
            assert self._process.poll() is None, "the well-behaved client has failed"
            return len(self.trips) >= since + count

        eventually(enough, f"{count} round trips of the bystander", 60, 0.01)
        return [took for _, took in self.trips[since:]]

    def between(self, began: int, ended: int) -> list[float]:
        """What those took that were due then."""
        eventually(lambda: self.trips[-1][0] > ended, "a round trip after the attack", 60, 0.005)
        return [took for due, took in self.trips if began <= due <= ended]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(20) == 0, "the well-behaved client has failed"
        finally:
            self._process.kill()
            self._reader.join(5)


class Target:
    """A broker process that is attacked, one that is not, and their bystanders."""

    thorough = THOROUGH

    def __init__(self, broker: BrokerProcess, left_alone: BrokerProcess) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self._bystander = Watch(broker.bootstrap)
        self._apart = Watch(left_alone.bootstrap)
        # Everything that is loaded at first use is.
        self._bystander.wait(200)

    def wait_for_trips(self, count: int = TRIPS) -> None:
        """For an attack that only has to last."""
        self._bystander.wait(count)

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return self._status("VmRSS")

    @property
    def sockets(self) -> int:
        """Open sockets of the broker."""
        count = 0
        for path in Path(f"/proc/{self.broker.pid}/fd").iterdir():
            with suppress(OSError):
                count += os.readlink(path).startswith("socket:")
        return count

    @contextmanager
    def measured(self, effects: list[Effect]) -> Iterator[None]:
        """One round: adds its effect."""
        before = self._bystander.wait(TRIPS)
        sockets = self.sockets
        # The highest resident size begins anew.
        Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")
        memory = self.memory
        began = time.monotonic_ns()
        yield
        ended = time.monotonic_ns()
        during, apart = self._bystander.between(began, ended), self._apart.between(began, ended)
        effects.append(Effect(before, during, apart, self._status("VmHWM") - memory))
        eventually(lambda: self.sockets <= sockets, "as many sockets as before the attack", 30)

    def attacked(self, title: str, attack: Callable[[], object], rounds: int = ROUNDS) -> Effect:
        """Attack, and again if others were served worse than they may be, for that may have been the machine."""
        effects: list[Effect] = []
        for _ in range(rounds):
            with self.measured(effects):
                trips = self._bystander.trips
                enough = len(trips) + TRIPS
                attack()
                while len(trips) < enough:
                    attack()
            effect = effects[-1]
            if REPORT:
                with open(REPORT, "a") as report:
                    report.write(f"{title}: {effect}\n")
            assert effect.growth <= MOST_GROWTH, f"{title}: {effect}"
            if effect.median_ratio <= MOST_RATIO and effect.p99_ratio <= MOST_RATIO:
                return effect
        raise AssertionError(f"{title}: " + "; ".join(map(str, effects)))

    def log(self) -> str:
        return self.broker.errors

    def end(self) -> None:
        self._bystander.end()
        self._apart.end()
