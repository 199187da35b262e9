"""Measures every case on every server, in several rounds."""

import sys
from collections.abc import Sequence

from scripts.benchmark.capacity.case import Case
from scripts.benchmark.capacity.client import connected
from scripts.benchmark.capacity.server import Server

# One column of the table: the values of all rounds, by the figure's name.
Figures = dict[str, list[float]]

RATE = "responses/s"
PROCESSOR = "processor time per response"
UNITS = {
    RATE: "1/s",
    PROCESSOR: "us",
    "user time per response": "us",
    "system time per response": "us",
    "throughput": "MB/s",
    "p50": "us",
    "p99": "us",
    "client's processor time per response": "us",
}


def measure(server: Server, case: Case, seconds: float) -> dict[str, float]:
    """Run a case once. Returns the figures by name, in the units of UNITS."""
    with (
        case.prepare(server) as load,
        connected(server.port, load, seconds, name=f"{server.label}, {case.name}") as client,
    ):
        before = server.peer.processor_time()
        run = client.run()
        after = server.peer.processor_time()
    if run.bytes_received < run.responses * load.response_bytes:
        size = run.bytes_received / run.responses
        raise SystemExit(f"{server.label}, {case.name}: responses of {size:.0f} bytes, expected {load.response_bytes}")
    user, system = (1e6 * (now - then) / run.responses for now, then in zip(after, before, strict=True))
    megabytes_per_s = (run.bytes_sent + run.bytes_received) / run.seconds / 1e6
    client_us = run.client_us / run.responses
    values = (run.responses / run.seconds, user + system, user, system, megabytes_per_s, run.p50_us, run.p99_us)
    return dict(zip(UNITS, (*values, client_us), strict=True))


def run_rounds(
    columns: Sequence[tuple[str, Server]], cases: Sequence[Case], rounds: int, seconds: float
) -> dict[str, dict[str, Figures]]:
    """Measure the cases with each column's server in turn; returns the figures by case and column.

    A first round warms the servers up and is not counted. A case that fails is reported and left out.
    """
    figures: dict[str, dict[str, Figures]] = {
        case.name: {column: {name: [] for name in UNITS} for column, _ in columns} for case in cases
    }
    for number in range(-1, rounds):
        first = number % len(columns)
        for case in [case for case in cases if case.name in figures]:
            try:
                for column, server in (*columns[first:], *columns[:first]):
                    for name, value in measure(server, case, seconds).items():
                        if number >= 0:
                            figures[case.name][column][name].append(value)
            except SystemExit as error:
                print(f"\nleft out: {error}", file=sys.stderr)
                del figures[case.name]
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return figures
