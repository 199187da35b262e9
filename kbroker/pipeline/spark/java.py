"""Which Java the JVM of Spark will be, looked at before it is started: its own complaint is a page of stack traces."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.pipeline.errors import PipelineError

# Spark 4.0 is built for 17. Java 23 took away Subject.getSubject, without which its Hadoop does not start.
OLDEST, NEWEST = 17, 22
WANTED = f"Spark needs Java {OLDEST} to {NEWEST}"
_ANSWER_S = 30

_QUOTED = re.compile(r'"([^"]+)"')
_VERSION = re.compile(r"(?:1\.)?(\d+)")


class Java(NamedTuple):
    """A Java that Spark can run on."""

    executable: str
    version: int  # 17, 21, ...


def require_java(environ: Mapping[str, str]) -> Java:
    """The Java that Spark's scripts take: that of JAVA_HOME, else the first of PATH.

    Raises PipelineError, one sentence, where there is none or it is of the wrong version.
    """
    executable, named_by = _find(environ)
    text = _version_text(executable)
    match = _VERSION.match(text)
    if match is None:
        raise PipelineError(f"{WANTED}, and {executable} ({named_by}) does not say its version")
    version = int(match[1])
    if not OLDEST <= version <= NEWEST:
        raise PipelineError(
            f"{WANTED}, and {executable} ({named_by}) is Java {text}: let JAVA_HOME name another installation"
        )
    return Java(executable, version)


def _find(environ: Mapping[str, str]) -> tuple[str, str]:
    """The executable and what named it."""
    home = environ.get("JAVA_HOME", "")
    if home:
        executable = os.path.join(home, "bin", "java")
        if not os.access(executable, os.X_OK):
            raise PipelineError(f"{WANTED}, and JAVA_HOME is {home}, where there is no bin/java")
        return executable, "of JAVA_HOME"
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise PipelineError(f"{WANTED}, and there is none: no java in PATH, and JAVA_HOME is not set")
    return found, "of PATH"


def _version_text(executable: str) -> str:
    """What the installation's `release` file says, which costs nothing; else what the program says."""
    try:
        for line in (Path(os.path.realpath(executable)).parents[1] / "release").read_text().splitlines():
            if line.startswith("JAVA_VERSION="):
                return line.partition("=")[2].strip('" ')
    except (OSError, UnicodeDecodeError):
        pass
    return _asked(executable)


def _asked(executable: str) -> str:
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _QUOTED.search(done.stderr)
    return match[1] if match else ""
