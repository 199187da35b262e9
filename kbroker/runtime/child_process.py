"""The program of a child process: runs one job at low priority, and ends if the broker ends.

The command line names the job (module:function). The child reads the length of the task and the task from standard
input, and writes to standard output a byte for success or failure and then the result or the traceback. Standard input
stays open: its end means that the parent has died. On Linux the kernel kills the child when the parent dies.
"""

import os
import signal
import sys
import threading
import time
from struct import Struct
from typing import NoReturn

from kbroker.runtime.environment import ProcessFunction
from kbroker.runtime.real_disk import RealDisk
from kbroker.runtime.system_clock import SystemClock

LENGTH = Struct(">Q")
DONE, FAILED = b"\0", b"\1"
_PR_SET_PDEATHSIG = 1
_IOPRIO_WHO_PROCESS = 1
_IDLE_CLASS = 3 << 13
# The number of the system call ioprio_set, by architecture.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
# A third of the share of a normal process. At 19, a hundredth, a compaction did not end within minutes while other
# processes kept all cores busy.
_NICENESS = 5
_STDIN, _STDOUT, _STDERR = range(3)
_PIPE_BYTES = 1 << 16


def main() -> NoReturn:
    os.nice(_NICENESS)
    if sys.platform == "linux":
        _set_linux_options()
    output_fd = os.dup(_STDOUT)
    # Output that the job prints must not become part of the result.
    os.dup2(_STDERR, _STDOUT)
    (length,) = LENGTH.unpack(_read(LENGTH.size))
    task = _read(length)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    module, _, function = sys.argv[1].partition(":")
    try:
        job: ProcessFunction = getattr(__import__(module, fromlist=[function]), function)
        output = DONE + job(RealDisk(), SystemClock(), time.sleep, task)
    except BaseException:
        from traceback import format_exc

        output = FAILED + format_exc().encode()
    unwritten = memoryview(output)
    try:
        while unwritten:
            unwritten = unwritten[os.write(output_fd, unwritten) :]
    except BrokenPipeError:
        os._exit(1)
    # Exit without the interpreter's clean-up, which would only take time.
    os._exit(0 if output[:1] == DONE else 1)


def _read(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(_STDIN, min(size, _PIPE_BYTES))
        if not part:
            # The parent has died.
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _exit_with_parent() -> None:
    os.read(_STDIN, 1)
    os._exit(1)


def _set_linux_options() -> None:
    """Use idle I/O priority, and get killed when the parent's thread that waits for this process ends."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IDLE_CLASS)


if __name__ == "__main__":
    main()
