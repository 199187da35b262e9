"""`python -m kbroker.simulation --seeds A..B --scenario NAME`: run seeds on all cores and report failures."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from kbroker.simulation.scenarios.run import Summary, simulate, summarize
from kbroker.simulation.scenarios.scenarios import LONE_BROKER_SCENARIOS, SCENARIOS

ANY = "any"
# Workers are replaced after this number of seeds, so that what earlier runs leave in memory does not slow down later
# ones.
SEEDS_PER_WORKER = 100


@dataclass(slots=True)
class Totals:
    passed: int = 0
    failed: list[Summary] = field(default_factory=list)
    virtual_s: float = 0.0
    operations: int = 0
    cpu_s: float = 0.0

    def add(self, summary: Summary) -> None:
        self.virtual_s += summary.virtual_s
        self.operations += summary.operations
        self.cpu_s += summary.cpu_s
        if summary.report:
            self.failed.append(summary)
        else:
            self.passed += 1

    def __str__(self) -> str:
        speed = self.operations / self.cpu_s if self.cpu_s else 0
        failed = f"{len(self.failed)} failed, " if self.failed else ""
        return (
            f"{self.passed:,} seeds passed, {failed}{self.virtual_s / 3600:.2f} virtual hours, "
            f"{self.operations:,} client operations, {speed:,.0f} a second on a core"
        )


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    if options.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<20} {scenario.text}")
        return 0
    runs = [(seed, _scenario(options.scenario, seed)) for seed in options.seeds]
    if options.history or options.trace:
        return _replay(runs, options.history, options.trace)
    begun = perf_counter()
    totals = Totals()
    for summary in _summaries(runs, options.jobs):
        totals.add(summary)
        if summary.report:
            _clear_progress()
            print(f"{summary.report}\n\nto replay: {replay_line(summary.seed, summary.scenario)}\n", flush=True)
            if len(totals.failed) >= options.failures:
                break
        elif options.hashes:
            print(f"{summary.scenario} {summary.seed} {summary.digest}", flush=True)
        _progress(totals, len(runs))
    _clear_progress()
    print(f"{totals}; {perf_counter() - begun:.0f} s")
    return 1 if totals.failed else 0


def replay_line(seed: int, scenario: str) -> str:
    return f"python -m kbroker.simulation --seeds {seed} --scenario {scenario}"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kbroker.simulation",
        description="Run a broker and its clients on a simulated machine and network with faults, one run per seed, "
        "and check the histories of the clients.",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=range(100),
        metavar="A..B",
        help="from A up to, not including, B; or one seed (default: 0..100)",
    )
    parser.add_argument(
        "--scenario",
        choices=[*SCENARIOS, ANY],
        default=ANY,
        help="the scenario; any: each seed selects one of a lone broker (default: any)",
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="number of processes (default: number of cores)"
    )
    parser.add_argument("--failures", type=int, default=3, metavar="N", help="stop after N failures (default: 3)")
    parser.add_argument("--hashes", action="store_true", help="print the hash of each run's trace")
    parser.add_argument("--history", type=Path, metavar="FILE", help="write the history of the clients to a file")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write all events of the simulation to a file")
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, dots, end = text.partition("..")
    return range(int(first), int(end)) if dots else range(int(first), int(first) + 1)


def _scenario(name: str, seed: int) -> str:
    names = list(LONE_BROKER_SCENARIOS)
    return names[seed % len(names)] if name == ANY else name


def _summaries(runs: list[tuple[int, str]], jobs: int) -> Iterator[Summary]:
    if jobs == 1 or len(runs) == 1:
        yield from (summarize(seed, scenario) for seed, scenario in runs)
        return
    for start in range(0, len(runs), SEEDS_PER_WORKER * jobs):
        with ProcessPoolExecutor(jobs) as pool:
            futures = [
                pool.submit(summarize, seed, scenario)
                for seed, scenario in runs[start : start + SEEDS_PER_WORKER * jobs]
            ]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _replay(runs: Iterable[tuple[int, str]], history: Path | None, trace: Path | None) -> int:
    failed = 0
    for seed, scenario in runs:
        result = simulate(seed, scenario, trace=trace is not None)
        if history is not None:
            history.write_text(result.text())
        if trace is not None:
            trace.write_text("".join(result.trace))
        print(result.report() or f"seed {seed} of {scenario} passed")
        failed += bool(result.report())
    return 1 if failed else 0


def _progress(totals: Totals, count: int) -> None:
    if sys.stderr.isatty():
        done = totals.passed + len(totals.failed)
        print(f"\r{done:,} of {count:,}: {totals}", end="", file=sys.stderr, flush=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
