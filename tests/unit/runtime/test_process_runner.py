"""Jobs in child processes: results, failures, kills, and that they end with their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock, ProcessJobFailed
from kbroker.runtime.process_runner import ChildProcess, SystemProcessRunner


def echo(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    print("printed text is not part of the result")
    return task[::-1]


def states(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    own_session = os.getsid(0) == os.getpid()
    return f"{os.nice(0)} {os.getppid()} {own_session} {disk.isdir('/')} {clock.now_ms()} {clock.mono_ms()}".encode()


def fails(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    raise ValueError("defect")


def dies(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def hangs(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    """Write the process id to the file that the task names, and hang."""
    disk.write_atomic(task.decode(), str(os.getpid()).encode(), sync=False)
    sleep(600)
    return b""


def run_with_runner(check: Callable[[SystemProcessRunner], object]) -> None:
    async def main() -> None:
        await asyncio.wait_for(check(SystemProcessRunner(asyncio.get_running_loop())), 60)  # type: ignore[arg-type]

    asyncio.run(main())


def gone(pid: int) -> bool:
    """Return whether the process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_a_job_returns_its_result(size: int) -> None:
    async def check(run_process: SystemProcessRunner) -> None:
        task = os.urandom(size)
        assert await run_process(echo, task).done == task[::-1]

    run_with_runner(check)


def test_a_job_has_low_priority_a_disk_and_clocks() -> None:
    async def check(run_process: SystemProcessRunner) -> None:
        nice, parent, own_session, isdir, now_ms, mono_ms = (await run_process(states, b"").done).split()
        assert (int(nice), int(parent), own_session, isdir) == (5, os.getpid(), b"True", b"True")
        assert abs(int(now_ms) - time.time() * 1000) < 60_000
        assert abs(int(mono_ms) - time.monotonic() * 1000) < 60_000

    run_with_runner(check)


@pytest.mark.parametrize(("job", "reason"), [(fails, "ValueError: defect"), (dies, "it ended with status -9")])
def test_a_failure_has_a_reason(job: Callable[..., bytes], reason: str) -> None:
    async def check(run_process: SystemProcessRunner) -> None:
        with pytest.raises(ProcessJobFailed, match=reason):
            await run_process(job, b"").done

    run_with_runner(check)


def test_a_job_can_be_killed_at_any_time(tmp_path: Path) -> None:
    async def check(run_process: SystemProcessRunner) -> None:
        for number in range(6):
            path = tmp_path / str(number)
            child = run_process(hangs, str(path).encode())
            # At once, while the process starts, and while the job runs.
            await asyncio.sleep(number * 0.02)
            while number == 5 and not path.exists():
                await asyncio.sleep(0.01)
            child.kill()
            with pytest.raises(ProcessJobFailed, match="the process was killed"):
                await child.done
            assert child.pid is None or gone(child.pid)

    run_with_runner(check)


def test_a_kill_after_the_end_has_no_effect() -> None:
    async def check(run_process: SystemProcessRunner) -> None:
        child = run_process(echo, b"ab")
        assert await child.done == b"ba"
        child.kill()
        assert isinstance(child, ChildProcess)

    run_with_runner(check)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_a_stopped_process_ends_with_its_parent(tmp_path: Path) -> None:
    """It cannot read its standard input."""
    parent, child = family(tmp_path / "pid")
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    wait_for(lambda: gone(child))


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_parent(tmp_path: Path, sig: signal.Signals) -> None:
    parent, child = family(tmp_path / "pid")
    parent.send_signal(sig)
    parent.wait()
    wait_for(lambda: gone(child))


def family(path: Path) -> "tuple[subprocess.Popen[bytes], int]":
    """Start a process with a child that hangs. Returns the process and the id of the child."""
    program = (
        "import asyncio, sys\n"
        "from kbroker.runtime.process_runner import SystemProcessRunner\n"
        "from tests.unit.runtime.test_process_runner import hangs\n"
        "async def main():\n"
        "    await SystemProcessRunner(asyncio.get_running_loop())(hangs, sys.argv[1].encode()).done\n"
        "asyncio.run(main())\n"
    )
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    parent = subprocess.Popen([sys.executable, "-c", program, str(path)], env={**os.environ, "PYTHONPATH": paths})
    try:
        wait_for(path.exists)
    except AssertionError:
        parent.kill()
        raise
    return parent, int(path.read_text())
