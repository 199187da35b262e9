"""Runs a user's program in kbroker's Spark session, as `python FILE` would run it."""

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any


def run_file(file: str, args: Sequence[str], session: Any) -> int:
    """Run the program and return its exit status. Prints the traceback of an exception, without kbroker's frames.

    Raises KeyboardInterrupt.
    """
    sys.argv = [file, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    try:
        runpy.run_path(file, {"spark": session}, "__main__")
    except SystemExit as error:
        return _exit_status(error)
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _program_frames(error.__traceback__, file))
        return 1
    return 0


def _exit_status(error: SystemExit) -> int:
    """Return the exit status of an interpreter that ends with this error. Prints a message as the interpreter does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _program_frames(trace: TracebackType | None, file: str) -> TracebackType | None:
    """Return the traceback from the program's first frame; None if the program cannot be compiled."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace
