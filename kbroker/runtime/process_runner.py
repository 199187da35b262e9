"""Runs jobs in child processes (child_process.py), which end with the broker."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from kbroker.runtime.child_process import DONE, LENGTH
from kbroker.runtime.environment import ProcessFunction, ProcessJobFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from subprocess import Popen

# The most characters that are kept of a failed job's traceback.
MAX_FAILURE_CHARACTERS = 2_000


class SystemProcessRunner:
    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, job: ProcessFunction, task: bytes | bytearray, /) -> ChildProcess:
        return ChildProcess(self._loop, job, task)


class ChildProcess:
    """A ProcessJob. A thread starts the process, writes its task and waits for it: the cheapest way to wait."""

    def __init__(self, loop: AbstractEventLoop, job: ProcessFunction, task: bytes | bytearray) -> None:
        self.done: Future[bytes] = loop.create_future()
        self._loop = loop
        self._job_name = f"{getattr(job, '__module__', '')}:{getattr(job, '__name__', '')}"
        self._task = task
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None
        self._killed = False
        threading.Thread(target=self._run_blocking, name="kbroker-process-job", daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def _run_blocking(self) -> None:
        result: bytes | ProcessJobFailed
        try:
            result = self._result_blocking()
        except (OSError, ProcessJobFailed) as error:
            result = error if isinstance(error, ProcessJobFailed) else ProcessJobFailed(str(error))
        try:
            self._loop.call_soon_threadsafe(self._complete, result)
        except RuntimeError:
            # The event loop is closed, since the broker has stopped.
            return

    def _complete(self, result: bytes | ProcessJobFailed) -> None:
        if self.done.done():
            return
        if isinstance(result, bytes):
            self.done.set_result(result)
        else:
            self.done.set_exception(result)

    def _result_blocking(self) -> bytes:
        with self._lock:
            if self._killed:
                raise ProcessJobFailed("the process was killed")
            process = self._process = _start(self._job_name)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout, _closed_at_exit(process.stdin):
            try:
                process.stdin.write(LENGTH.pack(len(self._task)))
                process.stdin.write(self._task)
                process.stdin.flush()
            except BrokenPipeError:
                # The output and exit status of the process show why.
                pass
            output = process.stdout.read()
            status = process.wait()
        if output[:1] == DONE and status == 0:
            return output[1:]
        if self._killed:
            raise ProcessJobFailed("the process was killed")
        failure = output[1:].decode(errors="replace")[-MAX_FAILURE_CHARACTERS:]
        raise ProcessJobFailed(failure or f"it ended with status {status}")


@contextmanager
def _closed_at_exit(pipe: IO[bytes]) -> Iterator[None]:
    """Close the pipe, without an error if the process ended before it read everything."""
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            pipe.close()


def _start(job_name: str) -> Popen[bytes]:
    from subprocess import PIPE, Popen

    # The child finds the same modules as this process, even after a change of the working directory.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-P", "-m", "kbroker.runtime.child_process", job_name]
    environment = {**os.environ, "PYTHONPATH": paths}
    # In a new session, so that signals from a terminal reach only the broker.
    return Popen(command, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True)
