"""System calls per response, counted by strace in separate short runs, since strace slows a server down."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.benchmark.capacity.cases import Case
from scripts.benchmark.capacity.client import connected
from scripts.benchmark.capacity.server import Server

SECONDS = 0.5
ATTACH_S = 20
# Fewer calls per response than this are not shown.
SMALLEST = 0.05
# A line of the summary: % time, seconds, usecs/call, calls, perhaps errors, system call.
_ROW = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", re.MULTILINE)


def have_strace() -> bool:
    return shutil.which("strace") is not None


def parse_summary(text: str) -> dict[str, int]:
    """Return the number of calls by system call, from the output of strace -c."""
    return {name: int(calls) for calls, name in _ROW.findall(text) if name != "total"}


def count(server: Server, case: Case) -> dict[str, float]:
    """Run a case; return system calls per response, the most frequent first."""
    with TemporaryDirectory(prefix="kbroker-bench-") as directory:
        output = Path(directory) / "strace"
        with (
            case.prepare(server) as load,
            connected(server.port, load, SECONDS, name=f"{server.label}, {case.name}") as client,
            strace(server.peer.processes(), output),
        ):
            run = client.run()
        calls = {name: calls / run.responses for name, calls in parse_summary(output.read_text()).items()}
    return dict(sorted(calls.items(), key=lambda item: -item[1]))


@contextmanager
def strace(pids: Sequence[int], output: Path) -> Iterator[None]:
    """Count the system calls of processes and all their threads until the end of the context."""
    command = ["strace", "-c", "-f", "-o", str(output), *(f"--attach={pid}" for pid in pids)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_traced(pids, process)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=ATTACH_S)


def wait_until_traced(pids: Sequence[int], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + ATTACH_S
    while not all(is_traced(pid) for pid in pids):
        if process.poll() is not None:
            assert process.stderr is not None
            raise SystemExit(f"strace: {process.stderr.read().strip()}")
        if time.monotonic() > deadline:
            raise SystemExit("strace did not attach in time")
        time.sleep(0.01)


def is_traced(pid: int) -> bool:
    """Return whether all threads of a process are traced."""
    tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return all(re.search(r"^TracerPid:\s*[1-9]", status, re.MULTILINE) for status in tasks)


def table(counts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Format the counts as a Markdown table. `counts`: calls per response by case, server and system call."""
    servers = list(next(iter(counts.values())))
    lines = [f"| system calls per response | {' | '.join(servers)} |", f"|---|{'---|' * len(servers)}"]
    for case, by_server in counts.items():
        cells = [
            ", ".join(f"{name} {calls:.2f}" for name, calls in by_server[server].items() if calls >= SMALLEST)
            for server in servers
        ]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)
