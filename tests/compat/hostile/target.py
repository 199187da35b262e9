"""The broker that is attacked, and the limits on what an attack may do to it and to its other clients.

`Target.attacked()` runs an attack. During the attack the round trips of a well-behaved client (latency_probe.py) may
take twice as long as without it, their median and their 99th percentile; the broker's resident memory may grow by
64 MiB at its peak; afterwards the broker has no more sockets than before.

How long round trips take without the attack is measured just before it, and during it on a second broker that is not
attacked: the control. An attacker needs processor time itself, and the machine has other work; both delay the control
as well.

The numbers of milliseconds are for one machine. Where the control's round trips are slower than
`QUIET_ROUND_TRIP_MS`, the attacker's pauses, the probes' intervals and the tolerated delay are longer in the same
proportion, so that an attack takes the same share of a slow broker as of a fast one. A round that fails while the
control itself is delayed, or the attacked broker waits for a processor, does not count, and is repeated.
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
from typing import NamedTuple

from tests.compat.hostile.latency_probe import INTERVAL_NS, TRIP
from tests.compat.hostile.raw_client import create_topic
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually
from tests.sampling import THOROUGH

MIB = 1 << 20
MAX_MEMORY_GROWTH = 64 * MIB
MAX_RATIO = 2.0
# Round trips before an attack, and at least during it: a shorter attack is repeated.
MIN_ROUND_TRIPS = 60
# The median round trip on the machine for which the pauses of the attacks were chosen, when it is quiet.
QUIET_ROUND_TRIP_MS = 0.6
# A 99th percentile up to here is within the limits on a quiet machine: the scheduler alone can cause it.
TOLERATED_P99_MS = 15.0
# An attack passes if one round of this many is within the limits; the machine may have disturbed the others.
ROUNDS = 3
# At most this many with the rounds that were disturbed.
MAX_ROUNDS = 10
# A broker that waits for a processor for a larger share of the time is slowed down by other processes.
MAX_WAITING = 0.25
# A file to which the effect of every round is written.
REPORT = os.environ.get("KBROKER_COMPAT_REPORT", "")
PROBE_TOPIC = "probe"

_PAUSE = threading.Event()  # never set


@dataclass
class Effect:
    """The effect of one round: durations of round trips in milliseconds, memory growth in bytes."""

    before: list[float]
    during: list[float]
    control: list[float]  # during the attack, on the broker that is not attacked
    slowness: float  # of the control during the attack
    waiting: float  # share of the time in which the attacked broker was ready to run and had no processor
    growth: int

    @property
    def median_ratio(self) -> float:
        usual = max(statistics.median(self.before), statistics.median(self.control))
        return statistics.median(self.during) / usual

    @property
    def p99_ratio(self) -> float:
        tolerated = TOLERATED_P99_MS * self.slowness / MAX_RATIO
        return p99(self.during) / max(p99(self.before), p99(self.control), tolerated)

    @property
    def is_within_limits(self) -> bool:
        return self.median_ratio <= MAX_RATIO and self.p99_ratio <= MAX_RATIO

    @property
    def is_disturbed(self) -> bool:
        """Whether something else than the attack delayed round trips: those of the control were late as well, or the
        attacked broker had to wait for a processor."""
        return self.slowness >= 1.5 or p99(self.control) > TOLERATED_P99_MS or self.waiting > MAX_WAITING

    def __str__(self) -> str:
        return (
            f"median {statistics.median(self.before):.2f} -> {statistics.median(self.during):.2f} ms "
            f"(control {statistics.median(self.control):.2f}, ratio {self.median_ratio:.2f}), "
            f"p99 {p99(self.before):.2f} -> {p99(self.during):.2f} ms (control {p99(self.control):.2f}, "
            f"ratio {self.p99_ratio:.2f}), slowness {self.slowness:.1f}, "
            f"waiting for a processor {self.waiting:.0%}, "
            f"{len(self.during)} round trips, memory +{self.growth / MIB:.1f} MiB"
        )


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


class RoundTrip(NamedTuple):
    due_ns: int
    duration_ms: float  # since it was due, so that it includes the delay by those before it
    service_ms: float  # since it started


class RoundTrips:
    """The round trips of a latency probe."""

    def __init__(self, bootstrap: str) -> None:
        create_topic(bootstrap, PROBE_TOPIC)
        self.trips: list[RoundTrip] = []
        command = [sys.executable, "-m", "tests.compat.hostile.latency_probe", bootstrap, PROBE_TOPIC]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with os.fdopen(os.dup(self._process.stdout.fileno()), "rb") as output:
            while data := output.read(TRIP.size):
                due, start, end = TRIP.unpack(data)
                self.trips.append(RoundTrip(due, (end - due) / 1e6, (end - start) / 1e6))

    def set_interval(self, interval_ns: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % interval_ns)

    def slowness(self) -> float:
        """Return how many times slower the latest round trips were than on a quiet machine, at least 1."""
        median = statistics.median(trip.service_ms for trip in self.trips[-MIN_ROUND_TRIPS:])
        return max(1.0, median / QUIET_ROUND_TRIP_MS)

    def wait(self, count: int) -> list[float]:
        """Wait for `count` more round trips, and return their durations."""
        start = len(self.trips)
        self._wait_until(lambda: len(self.trips) >= start + count, f"{count} round trips")
        return [trip.duration_ms for trip in self.trips[start:]]

    def between(self, start_ns: int, end_ns: int) -> list[float]:
        """Return the durations of the round trips that were due in this period."""
        self._wait_until(lambda: self.trips[-1].due_ns > end_ns, "a round trip after the attack")
        return [trip.duration_ms for trip in self.trips if start_ns <= trip.due_ns <= end_ns]

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def reached() -> bool:
            assert self._process.poll() is None, "the well-behaved client has failed"
            return condition()

        eventually(reached, what, interval=0.005, progress=lambda: len(self.trips))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(DEADLINE_S) == 0, "the well-behaved client has failed"
        finally:
            self._process.kill()
            self._reader.join(DEADLINE_S)


class Target:
    """A broker process that is attacked, one that is not, and a latency probe of each."""

    thorough = THOROUGH

    def __init__(self, broker: BrokerProcess, control: BrokerProcess) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self.slowness = 1.0
        self._probe = RoundTrips(broker.bootstrap)
        self._control_probe = RoundTrips(control.bootstrap)
        # The first requests load what is imported on first use.
        self._probe.wait(200)
        self._control_probe.wait(1)

    def pace(self, ms: float = 1.0) -> None:
        """Pause for some milliseconds of a quiet machine, longer on a slow one.

        Without pauses an attacker would be a load on the machine, which delays everything.
        """
        _PAUSE.wait(ms * self.slowness / 1000)

    def wait_for_round_trips(self, count: int = MIN_ROUND_TRIPS) -> None:
        """Wait until the probe has made `count` round trips, during an attack that only has to last."""
        self._probe.wait(count)

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        match = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def _waiting_ns(self) -> int:
        """Return for how long the main thread of the broker has been ready to run without a processor."""
        try:
            return int(Path(f"/proc/{self.broker.pid}/schedstat").read_text().split()[1])
        except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO
            return 0

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return self._status("VmRSS")

    @property
    def sockets(self) -> int:
        """The number of open sockets of the broker."""
        count = 0
        for path in Path(f"/proc/{self.broker.pid}/fd").iterdir():
            with suppress(OSError):
                count += os.readlink(path).startswith("socket:")
        return count

    def _adjust_to_machine(self) -> None:
        """Adjust the pauses to the speed that the machine has now."""
        self.slowness = self._control_probe.slowness()
        for probe in (self._probe, self._control_probe):
            probe.set_interval(int(INTERVAL_NS * self.slowness))

    @contextmanager
    def measured(self, effects: list[Effect]) -> Iterator[None]:
        """Run one round, and append its effect."""
        self._adjust_to_machine()
        before = self._probe.wait(MIN_ROUND_TRIPS)
        sockets = self.sockets
        # This resets VmHWM, the peak of the resident size.
        Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")
        memory = self.memory
        waiting_ns = self._waiting_ns()
        start = time.monotonic_ns()
        yield
        end = time.monotonic_ns()
        waiting = (self._waiting_ns() - waiting_ns) / (end - start)
        during, control = self._probe.between(start, end), self._control_probe.between(start, end)
        growth = self._status("VmHWM") - memory
        effects.append(Effect(before, during, control, self._control_probe.slowness(), waiting, growth))
        eventually(lambda: self.sockets <= sockets, "no more sockets than before the attack")

    def attacked(self, title: str, attack: Callable[[], object], request_bytes: int = 0) -> None:
        """Attack until a round is within the limits; fail after `ROUNDS` undisturbed rounds that are not.

        `request_bytes`: the size of all requests of the attack, where a broker that is delayed may have to hold them
        in memory at the same time.
        """
        effects: list[Effect] = []
        failed = 0
        while failed < ROUNDS and len(effects) < MAX_ROUNDS:
            with self.measured(effects):
                trips = self._probe.trips
                enough = len(trips) + MIN_ROUND_TRIPS
                attack()
                while len(trips) < enough:
                    attack()
            effect = effects[-1]
            if REPORT:
                with open(REPORT, "a") as report:
                    report.write(f"{title}: {effect}\n")
            held = request_bytes if effect.is_disturbed else 0
            assert effect.growth <= MAX_MEMORY_GROWTH + held, f"{title}: {effect}"
            if effect.is_within_limits:
                return
            failed += not effect.is_disturbed
        raise AssertionError(f"{title}: " + "; ".join(map(str, effects)))

    def p99_during(self, loads: Sequence[Callable[[], object]], windows: int) -> list[float]:
        """Return the 99th percentile of round trips during each load, in milliseconds.

        A load is repeated until there are enough round trips for a window. The windows of the loads alternate, and the
        result is the median of a load's windows: what disturbs the machine in one of them has no effect.
        """
        self._adjust_to_machine()
        percentiles: list[list[float]] = [[] for _ in loads]
        trips = self._probe.trips
        for _ in range(windows):
            for load, values in zip(loads, percentiles, strict=True):
                start, enough = time.monotonic_ns(), len(trips) + MIN_ROUND_TRIPS
                while len(trips) < enough:
                    load()
                values.append(p99(self._probe.between(start, time.monotonic_ns())))
        return list(map(statistics.median, percentiles))

    def log(self) -> str:
        return self.broker.errors

    def end(self) -> None:
        self._probe.end()
        self._control_probe.end()
