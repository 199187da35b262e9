"""Complete runs: many seeds, each with faults and the checker; equal seeds give equal runs.

To run more seeds: `python -m kbroker.simulation --seeds 0..10000`.
"""

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from kbroker.simulation.__main__ import main
from kbroker.simulation.checker.history import Note
from kbroker.simulation.scenarios.run import Result, simulate
from kbroker.simulation.scenarios.scenarios import LONE_BROKER_SCENARIOS, SCENARIOS
from protocol.records.batch import parse_header

# The number of seeds of each scenario. More of them are for the command above.
SEEDS = 1
CLUSTER_SEEDS = 1
# The fewest client operations of a seed: a run that loses its broker for most of its time still has some 80.
SEED_OPERATIONS = 50
# Of one lone broker each, as different scenarios as the seeds select.
REPEATED_SEEDS = 2
# The number of seeds of which at least one must have a fault.
SEEDS_WITH_A_FAULT = 5
WITHIN_S = 900
FAULT = re.compile("kill|SIGTERM|power|cut|clog|slow|reset|half-open|fail|full|flip|paused|clock|coordination")


def run(*arguments: str, hash_seed: str = "0") -> str:
    """Run the command, which must pass, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "kbroker.simulation", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def has_fault(result: Result) -> bool:
    actions = [operation.action for operation in result.history.operations]
    return any(FAULT.search(action.text) for action in actions if isinstance(action, Note))


@pytest.mark.parametrize("scenario", LONE_BROKER_SCENARIOS)
def test_seeds_of_a_lone_broker_pass_and_have_faults(scenario: str):
    """Run more seeds until a fault happens, because the faults depend on the seed."""
    fault_happened = not LONE_BROKER_SCENARIOS[scenario].faults
    operations = 0
    for seed in range(SEEDS_WITH_A_FAULT):
        if seed >= SEEDS and fault_happened:
            break
        result = simulate(seed, scenario)
        assert not result.report(), result.report()
        assert result.virtual_s > 2
        operations += len(result.history.operations)
        fault_happened = fault_happened or has_fault(result)
    assert fault_happened
    assert operations > SEED_OPERATIONS * SEEDS


@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize("scenario", sorted(SCENARIOS.keys() - LONE_BROKER_SCENARIOS.keys()))
def test_seeds_of_a_cluster_pass(scenario: str):
    output = run("--seeds", f"0..{CLUSTER_SEEDS}", "--scenario", scenario)
    summary = re.fullmatch(
        rf"{CLUSTER_SEEDS} seeds passed, [\d.]+ virtual hours, ([\d,]+) client operations, .*\n", output
    )
    assert summary, output
    assert int(summary[1].replace(",", "")) > SEED_OPERATIONS * CLUSTER_SEEDS


def test_equal_seeds_are_equal_whatever_python_hashes():
    """Run in separate processes, because the hash seed is set when a process starts."""
    hashes = [run("--seeds", f"0..{REPEATED_SEEDS}", "--hashes", hash_seed=seed) for seed in ("1", "20261121")]
    lines = [
        sorted(line for line in output.splitlines() if re.fullmatch(r"[a-z-]+ \d+ [0-9a-f]{32}", line))
        for output in hashes
    ]
    assert len(lines[0]) == REPEATED_SEEDS
    assert lines[0] == lines[1]


def test_other_seeds_are_other_runs():
    assert len({simulate(seed, "network").digest for seed in range(2)}) == 2


def test_a_failure_is_reported_with_its_history_and_replay_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from kbroker.replica.partition import Partition

    real = Partition.append_as_leader

    def lying(self: Partition, records: memoryview, *arguments: Any) -> tuple[int, int, int]:
        """Acknowledge the tenth batch of a partition without writing it."""
        if self.log.log_end_offset > 10 and not hasattr(type(self), "lied"):
            type(self).lied = True  # type: ignore[attr-defined]
            base_offset = self.log.log_end_offset
            return base_offset, base_offset + parse_header(records).last_offset_delta + 1, -1
        return real(self, records, *arguments)

    monkeypatch.setattr(Partition, "append_as_leader", lying)
    try:
        assert main(["--seeds", "6", "--scenario", "calm"]) == 1
    finally:
        del Partition.lied  # type: ignore[attr-defined]
    output = capsys.readouterr().out
    assert "seed 6 of calm: FAILED" in output
    assert "to replay: python -m kbroker.simulation --seeds 6 --scenario calm" in output
    assert re.search(r"send topic\d-\d", output)
