"""`kbroker cluster roll`: the test restarts what the command prints, while producers with acks=all work."""

import json
import signal
import subprocess
import sys

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import DEADLINE_S

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

LIMITS = ("--restart-timeout", f"{DEADLINE_S:.0f}s", "--sync-timeout", f"{DEADLINE_S:.0f}s")


def roll(cluster: Cluster, *args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kbroker", "cluster", "roll", *args, "--bootstrap", cluster.bootstrap]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def started_ms(cluster: Cluster) -> dict[int, int]:
    output, errors = roll(cluster, "--dry-run", "--json").communicate(timeout=DEADLINE_S)
    document = json.loads(output)
    assert document["obstacles"] == [], errors
    return {broker["broker"]: broker["started_ms"] for broker in document["brokers"]}


def restart_what_is_printed(cluster: Cluster, running: "subprocess.Popen[str]", count: int) -> list[int]:
    """Restart the brokers of the next commands."""
    assert running.stdout is not None
    restarted = []
    for _ in range(count):
        word, broker = running.stdout.readline().split()
        assert word == "restart"
        cluster.stop(int(broker))
        cluster.start(int(broker))
        restarted.append(int(broker))
    return restarted


def test_a_guided_rolling_restart_is_interrupted_and_continued(cluster: Cluster) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    before, controller = started_ms(cluster), cluster.controller()
    with working(cluster, topic, 3) as work:
        command = ("--yes", "--command", "restart {id}", *LIMITS)
        running = roll(cluster, *command)
        first = restart_what_is_printed(cluster, running, 1)
        work.wait_for_more()
        assert running.stdout is not None
        printed = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=DEADLINE_S)
        assert running.returncode == 130, errors
        *_, since, time = errors.splitlines()[-1].split()
        assert since == "--since"

        running = roll(cluster, *command, since, time)
        others = restart_what_is_printed(cluster, running, 2)
        output, errors = running.communicate(timeout=DEADLINE_S)
        assert (running.returncode, output) == (0, ""), errors
        assert errors.splitlines()[-1].startswith("restarted 2 brokers in ")
        # The broker whose command was printed, and that was not restarted, is the first one.
        assert printed.split() == ["restart", str(others[0])]
        assert sorted([*first, *others]) == sorted(cluster.brokers)
        assert others[-1] == controller
        work.wait_for_more()
    after = started_ms(cluster)
    assert all(after[broker] > before[broker] for broker in cluster.brokers)


def test_it_does_not_begin_while_a_broker_is_away(cluster: Cluster) -> None:
    create_topic(cluster, [[1, 2, 3]])
    cluster.stop(2)
    cluster.wait_until(lambda view: 2 not in view.brokers, "broker 2 is fenced")
    refused = roll(cluster, "--yes")
    output, errors = refused.communicate(timeout=DEADLINE_S)
    assert (refused.returncode, output) == (1, "")
    assert errors.startswith("kbroker: broker 2 is away\n")
