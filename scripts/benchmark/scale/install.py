"""Measure an installation: from a machine without anything of kbroker to the first record, and the environment's size.

Each round has an empty home directory, so pip has no cache, and downloads everything: the speed of the registry counts.
Processor time is that of all processes. "From source" clones this repository's last commit.
"""

import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scripts.benchmark.frame import (
    add_options,
    median_of,
    number,
    parser,
    publish,
    rounds_text,
    scratch_directory,
    today,
    write_json,
)  # fmt: skip
from scripts.benchmark.peers import ROOT
from scripts.ports import free_ports

HEADING = "| from nothing to the first record | s | bound | processor s |\n|---|---|---|---|"
SIZE_HEADING = "| package | MB | MB of bytecode |\n|---|---|---|"
WHEEL, WHEEL_WITHOUT_BYTECODE, SOURCE = "pip install of a built wheel", "pip install --no-compile of it", "source"
BOUNDS = {WHEEL: 8, WHEEL_WITHOUT_BYTECODE: 8, SOURCE: 30}
# A virtual environment of Python 3.11 begins with them.
OF_VENV = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
SMALL_MB = 1.0


class Size(NamedTuple):
    """Bytes of the files of a package. `bytecode`: those that Python has compiled itself."""

    files: int
    bytecode: int


def empty_home(base: Path) -> dict[str, str]:
    """Return the environment of a user who has just come to the machine."""
    home = base / "home"
    home.mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PIP_INDEX_URL")}
    return kept | {"HOME": str(home), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(env: dict[str, str], *command: str | Path) -> None:
    subprocess.run(command, env=env, check=True, stdout=sys.stderr)


@contextmanager
def broker(env: dict[str, str], *command: str | Path) -> Iterator[None]:
    """Start a broker, and wait for its line on standard output."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        if not any(line.startswith("kbroker ready") for line in process.stdout):
            raise SystemExit(f"{command[0]} did not start a broker")
        yield
    finally:
        process.terminate()
        process.wait()


def build_wheel(base: Path) -> Path:
    """Build the wheel, which is not a part of what is measured."""
    run(dict(os.environ), sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", base, ROOT)
    (wheel,) = base.glob("kbroker-*.whl")
    if any(name.startswith("kbroker/simulation/") for name in zipfile.ZipFile(wheel).namelist()):
        raise SystemExit(f"{wheel.name} has the simulation")
    return wheel


def from_wheel(base: Path, wheel: Path, *options: str) -> None:
    env, address = empty_home(base), f"127.0.0.1:{free_ports()}"
    programs = base / "venv" / "bin"
    run(env, sys.executable, "-m", "venv", base / "venv")
    run(env, programs / "pip", "install", "--quiet", *options, wheel)
    with broker(env, programs / "kbroker", "start", "--data-dir", base / "data", "--listen", address):
        run(env, programs / "kbroker", "produce", "hello", "first record", "--bootstrap", address)


def from_source(base: Path) -> None:
    env, address = empty_home(base), f"127.0.0.1:{free_ports()}"
    clone = base / "kbroker"
    run(env, "git", "clone", "--quiet", ROOT, clone)
    with broker(env, clone / "scripts" / "run", "--listen", address):
        run(env, clone / ".venv" / "bin" / "kbroker", "produce", "hello", "first record", "--bootstrap", address)


def timed(install: Callable[[Path], None], directory: Path) -> dict[str, float]:
    begin, before = time.perf_counter(), os.times()
    install(directory)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.perf_counter() - begin, "processor": used}


def sizes(environment: Path) -> dict[str, Size]:
    """Return the size of each package of a virtual environment, without those that any environment has."""
    (packages,) = environment.glob("lib/python*/site-packages")
    result: dict[str, Size] = {}
    for path in packages.iterdir():
        name = re.sub(r"(\.libs|-[^-]+\.dist-info)$", "", path.name)
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        if name not in OF_VENV:
            compiled = sum(file.stat().st_size for file in files if file.suffix == ".pyc")
            old = result.get(name, Size(0, 0))
            all_bytes = sum(file.stat().st_size for file in files)
            result[name] = Size(old.files + all_bytes - compiled, old.bytecode + compiled)
    return result


def size_rows(found: dict[str, Size]) -> list[str]:
    """Return a row for each package of at least SMALL_MB, one for the others, and one for all."""
    large = {name: size for name, size in found.items() if sum(size) >= SMALL_MB * 1e6}
    others = [size for name, size in found.items() if name not in large]
    rows = sorted(large.items(), key=lambda item: -sum(item[1]))
    for title, of in ((f"{len(others)} others", others), ("all", list(found.values()))):
        rows.append((title, Size(sum(size.files for size in of), sum(size.bytecode for size in of))))
    return [f"| {name} | {number(size.files / 1e6)} | {number(size.bytecode / 1e6)} |" for name, size in rows]


def main() -> int:
    options = parser("--install", __doc__, 3)
    add_options(options, only=False)
    args = options.parse_args()
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in BOUNDS}
    with scratch_directory() as base:
        wheel = build_wheel(base)
        ways: dict[str, Callable[[Path], None]] = {
            WHEEL: lambda directory: from_wheel(directory, wheel),
            WHEEL_WITHOUT_BYTECODE: lambda directory: from_wheel(directory, wheel, "--no-compile"),
            SOURCE: from_source,
        }
        for index in range(args.rounds):
            for name, install in ways.items():
                figures[name].append(timed(install, base / f"{name} {index}"))
        found = sizes(base / f"{WHEEL} 0" / "venv")
    rows = [
        f"| {name} | {number(median_of(of, 'seconds') or 0)} | ≤ {BOUNDS[name]} "
        f"| {number(median_of(of, 'processor') or 0)} |"
        for name, of in figures.items()
    ]
    publish(args, "install", "--install", HEADING, rows, f"{today()}, {rounds_text(args.rounds)}")
    publish(args, "install-size", "--install", SIZE_HEADING, size_rows(found), today())
    write_json(args, figures=figures, sizes=found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
