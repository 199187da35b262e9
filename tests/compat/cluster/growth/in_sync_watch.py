"""Watches that no partition has fewer in-sync replicas than before, while plans move them and a broker is killed.

A partition begins with all its n replicas in sync. At any moment afterwards

- its replicas are those of before the plan, those of the plan's target, or both while it moves;
- at least n replicas are in sync. A killed broker counts as in sync until everything is in sync again, if it has been:
  of a partition that moves, a replica that the plan adds does not count.

So a plan that removed a replica too early would be noticed, also while a broker is down. Brokers that nobody has killed
must stay members of the cluster.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.growth.plan_commands import Replicas
from tests.compat.cluster.views import ClusterView, PartitionView, cluster_view
from tests.compat.support import Sampler

CHANGED = re.compile(r'^(\S+) .*: ISR changed partition=(\S+) isr="\[([\d, ]*)\]"', re.MULTILINE)
FENCED = re.compile(r"^(\S+) .*: broker fenced broker=(\d+)$", re.MULTILINE)


class Expected(NamedTuple):
    """What a partition may have. `target` is the same as `original` if no plan moves it."""

    original: frozenset[int]
    target: frozenset[int]


def wrong_state(expected: Expected, part: PartitionView, killed: Collection[int]) -> str:
    """Return what is wrong with a partition, "" if nothing is."""
    original, target = expected
    found = frozenset(part.replicas)
    if found not in (original, target, original | target):
        return f"replicas {sorted(found)}, neither {sorted(original)} nor {sorted(target)} nor both"
    excused = frozenset(killed) & (target if found == target else original)
    if len(part.isr | excused) < len(original):
        return f"replicas {sorted(found)}, of which only {sorted(part.isr)} are in sync"
    return ""


class KillWindow(NamedTuple):
    """The time from a kill until everything is in sync again; `end` is None until then."""

    broker: int
    begin: datetime
    end: datetime | None


class InSyncWatch(Sampler):
    """Asks the running brokers for their metadata, one after the other. `violations`: what was wrong, and when."""

    # What happens between two looks is in the logs of the brokers.
    interval_s = 0.4

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.violations: list[str] = []
        self.samples = 0
        self._cluster = cluster
        # Replaced, never changed: the thread that samples reads them.
        self._expected: dict[tuple[str, int], Expected] = {}
        self._members: frozenset[int] = frozenset()
        self._windows: tuple[KillWindow, ...] = ()
        self._stopped: Mapping[int, datetime] = {}

    # What the test does.

    def begin(self, replicas: Replicas, targets: Replicas) -> None:
        """From now on, a plan moves partitions, all of which are in sync, to these targets."""
        self._members = frozenset(self._cluster.running)
        self._expected = {
            key: Expected(frozenset(original), frozenset(targets.get(key, original)))
            for key, original in replicas.items()
        }

    def before_stop(self, broker: int) -> None:
        """Call it before a broker is stopped for good."""
        self._members -= {broker}
        self._stopped = {**self._stopped, broker: datetime.now(UTC)}

    def before_kill(self, broker: int) -> None:
        """Call it before a broker is killed."""
        self._windows = (*self._windows, KillWindow(broker, datetime.now(UTC), None))

    def in_sync_again(self) -> None:
        """Call it when the killed broker runs again, and all replicas are in sync."""
        self._windows = tuple(
            window if window.end else window._replace(end=datetime.now(UTC)) for window in self._windows
        )

    # What the brokers say.

    def sample(self) -> None:
        brokers = self._cluster.brokers
        for node_id in self._cluster.running:
            # What is known before a broker is asked: the response may be older than a kill, but not than its end.
            expected, members = self._expected, self._members
            killed = {window.broker for window in self._windows if window.end is None}
            view = cluster_view(brokers[node_id].bootstrap)
            if view is not None and expected:
                self.samples += 1
                self._look(node_id, view, expected, members - killed, killed)

    def _look(
        self,
        node_id: int,
        view: ClusterView,
        expected: Mapping[tuple[str, int], Expected],
        members: Collection[int],
        killed: Collection[int],
    ) -> None:
        wrong = [f"broker {other} is away" for other in sorted(set(members) - view.brokers)]
        for key, of_partition in expected.items():
            text = wrong_state(of_partition, view.partitions[key], killed) if key in view.partitions else "missing"
            if text:
                wrong.append(f"{key[0]}-{key[1]}: {text}")
        now = datetime.now(UTC).time().isoformat("milliseconds")
        self.violations += [f"{now} broker {node_id} says: {text}" for text in wrong]

    # What the brokers have logged: changes that were too short to be seen.

    def logged_violations(self, logs: Mapping[int, str]) -> Iterator[str]:
        """Yield what the logs of the brokers say, if all partitions have three replicas and one broker fails at a time.

        Leaders log changes of in-sync replicas, the controller logs that it fences brokers.
        """
        for node_id, log in logs.items():
            for time, partition, isr in CHANGED.findall(log):
                count = len(isr.split(","))
                if count < 3 - len(self._killed_at(time)):
                    yield f"{time} broker {node_id} has logged: only [{isr}] are in sync of {partition}"
            for time, fenced in FENCED.findall(log):
                moment = datetime.fromisoformat(time)
                is_stopped = int(fenced) in self._stopped and moment >= self._stopped[int(fenced)]
                if not is_stopped and int(fenced) not in self._killed_at(time):
                    yield f"{time} broker {node_id} has logged: broker {fenced} is fenced, which nobody has killed"

    def _killed_at(self, time: str) -> set[int]:
        moment = datetime.fromisoformat(time)
        return {
            window.broker
            for window in self._windows
            if window.begin <= moment and (window.end is None or moment <= window.end)
        }
