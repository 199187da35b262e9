"""Work in real processes: results, failures, being killed, ending with the parent."""

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
from kbroker.runtime.processes import Child, Processes


def echo(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    print("what is printed is no result")
    return task[::-1]


def states(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    own_session = os.getsid(0) == os.getpid()
    return f"{os.nice(0)} {os.getppid()} {own_session} {disk.isdir('/')} {clock.now_ms()} {clock.mono_ms()}".encode()


def fails(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    raise ValueError("as it must not")


def dies(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def hangs(disk: Disk, clock: Clock, sleep: Callable[[float], None], task: bytes) -> bytes:
    """Notes its process in the file that the task names."""
    disk.write_atomic(task.decode(), str(os.getpid()).encode(), sync=False)
    sleep(600)
    return b""


def story(tell: Callable[[Processes], object]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(tell(Processes(asyncio.get_running_loop())), 60)  # type: ignore[arg-type]

    asyncio.run(whole())


def gone(pid: int) -> bool:
    """Ended, if perhaps not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_a_task_gives_its_result(size: int) -> None:
    async def tell(processes: Processes) -> None:
        task = os.urandom(size)
        assert await processes(echo, task).done == task[::-1]

    story(tell)


def test_it_is_niced_and_has_a_disk_and_clocks() -> None:
    async def tell(processes: Processes) -> None:
        nice, parent, own_session, isdir, now_ms, mono_ms = (await processes(states, b"").done).split()
        assert (int(nice), int(parent), own_session, isdir) == (19, os.getpid(), b"True", b"True")
        assert abs(int(now_ms) - time.time() * 1000) < 60_000
        assert abs(int(mono_ms) - time.monotonic() * 1000) < 60_000

    story(tell)


@pytest.mark.parametrize(("job", "said"), [(fails, "ValueError: as it must not"), (dies, "it ended with status -9")])
def test_a_failure_is_told(job: Callable[..., bytes], said: str) -> None:
    async def tell(processes: Processes) -> None:
        with pytest.raises(ProcessJobFailed, match=said):
            await processes(job, b"").done

    story(tell)


def test_it_can_be_killed_at_any_time(tmp_path: Path) -> None:
    async def tell(processes: Processes) -> None:
        for number in range(6):
            path = tmp_path / str(number)
            child = processes(hangs, str(path).encode())
            # At once, while it starts, and while it is at work.
            await asyncio.sleep(number * 0.02)
            while number == 5 and not path.exists():
                await asyncio.sleep(0.01)
            child.kill()
            with pytest.raises(ProcessJobFailed, match="not wanted any more"):
                await child.done
            assert child.pid is None or gone(child.pid)

    story(tell)


def test_a_killed_one_that_had_ended_is_no_harm() -> None:
    async def tell(processes: Processes) -> None:
        child = processes(echo, b"ab")
        assert await child.done == b"ba"
        child.kill()
        assert isinstance(child, Child)

    story(tell)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_one_that_is_stopped_ends_with_its_parent_too(tmp_path: Path) -> None:
    """It cannot even look at its standard input."""
    parent, child = family(tmp_path / "pid")
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    wait_for(lambda: gone(child))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    parent, child = family(tmp_path / "pid")
    parent.send_signal(how)
    parent.wait()
    wait_for(lambda: gone(child))


def family(path: Path) -> "tuple[subprocess.Popen[bytes], int]":
    """A process with a child that hangs."""
    program = (
        "import asyncio, sys\n"
        "from kbroker.runtime.processes import Processes\n"
        "from tests.unit.runtime.test_processes import hangs\n"
        "async def main():\n"
        "    await Processes(asyncio.get_running_loop())(hangs, sys.argv[1].encode()).done\n"
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
