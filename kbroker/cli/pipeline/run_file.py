"""A user's program in a session of ours, as `python FILE` would run it."""

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any


def run_file(file: str, args: Sequence[str], session: Any) -> int:
    """Runs the program to its end and gives its exit status. Its failure is told with its traceback, without our part.

    KeyboardInterrupt is passed on.
    """
    sys.argv = [file, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    try:
        runpy.run_path(file, {"spark": session}, "__main__")
    except SystemExit as error:
        return _status(error)
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _own(error.__traceback__, file))
        return 1
    return 0


def _status(error: SystemExit) -> int:
    """What the interpreter makes of it."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _own(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The traceback from the program's first frame on; None where it has none: it could not be compiled."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace
