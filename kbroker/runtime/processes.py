"""Work in processes of their own: niced, and never longer alive than the broker that wants it.

The child is this module run as a program. It is told the job on its command line and the task on standard input, and
writes the result to standard output. Standard input stays open: when it ends, its parent has died, and so does the
child, whatever it is doing; on Linux the kernel sees to that at once. A terminal's signals are not for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from typing import IO, TYPE_CHECKING, NoReturn

from kbroker.runtime.disk import RealDisk
from kbroker.runtime.environment import ProcessFunction, ProcessJobFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from subprocess import Popen

_LENGTH = Struct(">Q")
_DONE, _FAILED = b"\0", b"\1"
_PR_SET_PDEATHSIG = 1
_IOPRIO_WHO_PROCESS = 1
_IDLE_CLASS = 3 << 13
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_LAST_WORDS = 2_000
_STDIN, _STDOUT, _STDERR = range(3)
_PIPE_BYTES = 1 << 16


class RealClock:
    """The machine's clocks."""

    mono_ns = staticmethod(time.monotonic_ns)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class Processes:
    """The real `Apart`."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, job: ProcessFunction, task: bytes, /) -> Child:
        return Child(self._loop, job, task)


class Child:
    """One process. It is started, fed and waited for in a thread of its own: that is what waiting costs least in."""

    def __init__(self, loop: AbstractEventLoop, job: ProcessFunction, task: bytes) -> None:
        self.done: Future[bytes] = loop.create_future()
        self._loop = loop
        self._name = f"{getattr(job, '__module__', '')}:{getattr(job, '__name__', '')}"
        self._task = task
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None
        self._killed = False
        threading.Thread(target=self._work, name="kbroker-errand", daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def _work(self) -> None:
        result: bytes | ProcessJobFailed
        try:
            result = self._outcome()
        except (OSError, ProcessJobFailed) as error:
            result = error if isinstance(error, ProcessJobFailed) else ProcessJobFailed(str(error))
        try:
            self._loop.call_soon_threadsafe(self._tell, result)
        except RuntimeError:
            # The loop is closed, and nobody waits.
            return

    def _tell(self, result: bytes | ProcessJobFailed) -> None:
        if self.done.done():
            return
        if isinstance(result, bytes):
            self.done.set_result(result)
        else:
            self.done.set_exception(result)

    def _outcome(self) -> bytes:
        with self._lock:
            if self._killed:
                raise ProcessJobFailed("it is not wanted any more")
            process = self._process = _start(self._name)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout, _closed_at_the_end(process.stdin):
            try:
                process.stdin.write(_LENGTH.pack(len(self._task)) + self._task)
                process.stdin.flush()
            except BrokenPipeError:
                # What it has to say, and its status, tell why.
                pass
            answer = process.stdout.read()
            status = process.wait()
        if answer[:1] == _DONE and status == 0:
            return answer[1:]
        said = answer[1:].decode(errors="replace")[-_LAST_WORDS:]
        raise ProcessJobFailed(
            "it is not wanted any more" if self._killed else said or f"it ended with status {status}"
        )


@contextmanager
def _closed_at_the_end(pipe: IO[bytes]) -> Iterator[None]:
    """What it has not taken by then goes nowhere: nobody is there."""
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            pipe.close()


def _start(name: str) -> Popen[bytes]:
    from subprocess import PIPE, Popen

    # The modules that are found are those that this process finds, whatever its directory is now.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-P", "-m", "kbroker.runtime.processes", name]
    environment = {**os.environ, "PYTHONPATH": paths}
    return Popen(command, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True)


def main() -> NoReturn:
    """The child. It ends at once when it has answered: nothing else is its business."""
    os.nice(19)
    _ask_linux()
    output = os.dup(_STDOUT)
    # What anything prints must not be taken for the result.
    os.dup2(_STDERR, _STDOUT)
    (length,) = _LENGTH.unpack(_read(_LENGTH.size))
    task = _read(length)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, _, function = sys.argv[1].partition(":")
    try:
        job: ProcessFunction = getattr(__import__(module, fromlist=[function]), function)
        answer = _DONE + job(RealDisk(), RealClock(), time.sleep, task)
    except BaseException:
        from traceback import format_exc

        answer = _FAILED + format_exc().encode()
    rest = memoryview(answer)
    try:
        while rest:
            rest = rest[os.write(output, rest) :]
    except BrokenPipeError:
        os._exit(1)
    os._exit(0 if answer[:1] == _DONE else 1)


def _read(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(_STDIN, min(size, _PIPE_BYTES))
        if not part:
            # The parent has died already.
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _end_with_parent() -> None:
    os.read(_STDIN, 1)
    os._exit(1)


def _ask_linux() -> None:
    """To be killed when the thread that started this process ends, which is when the parent does; and for the idle
    class of IO, in case the disk's scheduler knows it."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IDLE_CLASS)


if __name__ == "__main__":
    main()
