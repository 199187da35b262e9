"""Flame graphs of the broker under the load of a case, recorded by py-spy."""

import re
import subprocess
import sys
from pathlib import Path

from scripts.benchmark.capacity.case import Case
from scripts.benchmark.capacity.client import connected
from scripts.benchmark.capacity.server import Server

SAMPLES_PER_S = 250
# py-spy starts, and reads the program's symbols, before it takes samples.
START_S = 2
# The two paths that docs/benchmarks.md shows.
SHOWN = ("produce 16 KiB of 1 KiB", "fetch 8 KiB, batches of 4 KiB")


def svg_path(directory: Path, case: Case) -> Path:
    return directory / f"{re.sub(r'[^a-z0-9]+', '-', case.name.lower()).strip('-')}.svg"


def record(server: Server, case: Case, seconds: float, path: Path) -> None:
    """Write a flame graph of the server's main thread as SVG, wide parts are those that take most of the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pid = server.peer.processes()[0]
    command = [
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--output", str(path),
        "--duration", f"{seconds:.0f}", "--rate", str(SAMPLES_PER_S), "--format", "flamegraph", "--nonblocking",
    ]  # fmt: skip
    with (
        case.prepare(server) as load,
        connected(server.peer.port, load, seconds + START_S, name=f"{server.label}, {case.name}") as client,
    ):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        client.run()
        output = process.communicate(timeout=60)[0]
    if process.returncode:
        raise SystemExit(f"py-spy failed (it needs the right to trace processes):\n{output}")
