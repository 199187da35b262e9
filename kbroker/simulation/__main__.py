"""`python -m kbroker.simulation --seeds A..B --scenario NAME`: run seeds, on all cores, and report what they found."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from kbroker.simulation.scenarios.run import Summary, simulate, summarize
from kbroker.simulation.scenarios.scenarios import SCENARIOS

ANY = "any"
# A worker is replaced after so many seeds: what one leaves behind must not slow the others down.
SEEDS_A_WORKER = 100


@dataclass(slots=True)
class Totals:
    passed: int = 0
    failed: list[Summary] = field(default_factory=list)
    virtual_s: float = 0.0
    operations: int = 0
    cpu_s: float = 0.0

    def add(self, one: Summary) -> None:
        self.virtual_s += one.virtual_s
        self.operations += one.operations
        self.cpu_s += one.cpu_s
        if one.report:
            self.failed.append(one)
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
    work = [(seed, _scenario(options.scenario, seed)) for seed in options.seeds]
    if options.history or options.trace:
        return _replay(work, options.history, options.trace)
    begun = perf_counter()
    totals = Totals()
    for one in _summaries(work, options.jobs):
        totals.add(one)
        if one.report:
            _clear_progress()
            print(f"{one.report}\n\nto replay: {replay_line(one.seed, one.scenario)}\n", flush=True)
            if len(totals.failed) >= options.failures:
                break
        elif options.hashes:
            print(f"{one.scenario} {one.seed} {one.digest}", flush=True)
        _progress(totals, len(work))
    _clear_progress()
    print(f"{totals}; {perf_counter() - begun:.0f} s")
    return 1 if totals.failed else 0


def replay_line(seed: int, scenario: str) -> str:
    return f"python -m kbroker.simulation --seeds {seed} --scenario {scenario}"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kbroker.simulation",
        description="Runs a broker and its clients on a simulated machine and network, with faults, one run a seed; "
        "judges what the clients were told.",
    )
    parser.add_argument(
        "--seeds", type=_seeds, default=range(100), metavar="A..B", help="from A up to B; or one; 0..100"
    )
    parser.add_argument(
        "--scenario", choices=[*SCENARIOS, ANY], default=ANY, help="any (each seed has one of them) unless said"
    )
    parser.add_argument("--list", action="store_true", help="say what the scenarios are")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes; one for each core")
    parser.add_argument("--failures", type=int, default=3, metavar="N", help="stop after so many failures; 3")
    parser.add_argument("--hashes", action="store_true", help="print the hash of each run's trace")
    parser.add_argument("--history", type=Path, metavar="FILE", help="write what the clients did to a file")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write all that happened to a file")
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, dots, end = text.partition("..")
    return range(int(first), int(end)) if dots else range(int(first), int(first) + 1)


def _scenario(name: str, seed: int) -> str:
    names = list(SCENARIOS)
    return names[seed % len(names)] if name == ANY else name


def _summaries(work: list[tuple[int, str]], jobs: int) -> Iterator[Summary]:
    if jobs == 1 or len(work) == 1:
        yield from (summarize(seed, scenario) for seed, scenario in work)
        return
    for start in range(0, len(work), SEEDS_A_WORKER * jobs):
        with ProcessPoolExecutor(jobs) as pool:
            asked = [pool.submit(summarize, *one) for one in work[start : start + SEEDS_A_WORKER * jobs]]
            try:
                for future in as_completed(asked):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _replay(work: Iterable[tuple[int, str]], history: Path | None, trace: Path | None) -> int:
    failed = 0
    for seed, scenario in work:
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
