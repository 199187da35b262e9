"""Runs jobs in child processes (child_process.py), and services beside the broker; both end with it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, cast

from kbroker.runtime.child_process import DONE, LENGTH
from kbroker.runtime.environment import ProcessFunction, ProcessJobFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, BaseTransport, Future, Task, WriteTransport
    from subprocess import Popen

# The most characters that are kept of a failed job's traceback.
MAX_FAILURE_CHARACTERS = 2_000
# A service gets a third of the processor time of a busy broker on the same core.
SERVICE_NICENESS = 5


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
    from subprocess import PIPE

    return _start_module("kbroker.runtime.child_process", [job_name], PIPE, PIPE)


def _start_module(module: str, arguments: Sequence[str], stdin: int, stdout: int) -> Popen[bytes]:
    from subprocess import Popen

    # The child finds the same modules as this process, even after a change of the working directory.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    # In a new session, so that signals from a terminal reach only the broker.
    return Popen(command, stdin=stdin, stdout=stdout, env=environment, start_new_session=True)


class ChildService(asyncio.Protocol):
    """A Service: a process connected by a pair of sockets. It must end when its standard input does.

    A thread starts the process and waits for its end.
    """

    def __init__(
        self, loop: AbstractEventLoop, module: str, receive: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._receive = receive
        self._on_end = ended
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None
        self._killed = False
        self._transport: WriteTransport | None = None
        self._connecting: Task[None] | None = None
        # What was sent before the process was connected.
        self._unsent: list[bytes] = []
        threading.Thread(target=self._run_blocking, args=(module,), name="kbroker-service", daemon=True).start()

    def send(self, data: bytes, /) -> None:
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def _run_blocking(self, module: str) -> None:
        own, other = socket.socketpair()
        try:
            with other, self._lock:
                if not self._killed:
                    self._process = _start_module(module, (), other.fileno(), other.fileno())
        except OSError as error:
            reason = str(error)
        else:
            reason = "the process was killed"
        process = self._process
        try:
            if process is None:
                own.close()
            else:
                os.setpriority(os.PRIO_PROCESS, process.pid, SERVICE_NICENESS)
                self._loop.call_soon_threadsafe(self._connect, own)
                reason = f"status {process.wait()}"
            self._loop.call_soon_threadsafe(self._end, reason)
        except RuntimeError:
            # The event loop is closed, since the broker has stopped.
            own.close()

    def _connect(self, own: socket.socket) -> None:
        self._connecting = self._loop.create_task(self._connect_to(own))

    async def _connect_to(self, own: socket.socket) -> None:
        await self._loop.create_unix_connection(lambda: self, sock=own)

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = cast("WriteTransport", transport)
        for data in self._unsent:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.kill()

    def _end(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._on_end(reason)
