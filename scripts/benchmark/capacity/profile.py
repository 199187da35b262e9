"""Flame graphs of the broker under the load of a case, which py-spy draws."""

import re
import subprocess
import sys
from pathlib import Path

from scripts.benchmark.capacity.cases import Case
from scripts.benchmark.capacity.client import connected
from scripts.benchmark.capacity.server import Server

SAMPLES_PER_S = 250
# py-spy reads the program's symbols before it takes samples.
START_S = 2
# The two paths that docs/benchmarks.md shows.
SHOWN = ("produce 16 KiB of 1 KiB", "fetch 8 KiB, batches of 4 KiB")


def svg_path(directory: Path, case: Case) -> Path:
    return directory / f"{re.sub(r'[^a-z0-9]+', '-', case.name.lower()).strip('-')}.svg"


def record(server: Server, case: Case, seconds: float, path: Path) -> None:
    """Write a flame graph of the broker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(server.peer.processes()[0]),
        "--duration", f"{seconds:.0f}", "--rate", str(SAMPLES_PER_S), "--nolineno", "--format", "flamegraph",
        "--output", str(path),
    ]  # fmt: skip
    with (
        case.prepare(server) as load,
        connected(server.port, load, seconds + START_S, name=f"{server.label}, {case.name}") as client,
    ):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        client.run()
        output = process.communicate(timeout=60)[0]
    if process.returncode:
        raise SystemExit(f"py-spy failed (it needs the right to trace processes):\n{output}")
