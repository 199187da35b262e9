"""Runs Go, Rust and JavaScript programs of the tests, with what they download in `.cache`.

`python -m tests.compat.toolchains` compiles the Rust programs, so that they are ready when the tests run them.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.sampling import is_left_out

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
RUST_PROGRAMS = {
    "modern_groups": ROOT / "tests" / "compat" / "modern_groups" / "rust",
    "rskafka_reader": ROOT / "tests" / "compat" / "queues" / "programs" / "rust",
}
# The third of the runs (tests/sampling.py) in which each is compiled: a minute or more without `.cache`.
RUST_THIRDS = {"modern_groups": 0, "rskafka_reader": 2}
# The first run downloads Go modules, npm packages, or jars.
TIMEOUT_S = 500

GO_ENVIRONMENT = {
    "GOPATH": str(CACHE / "go"),
    "GOCACHE": str(CACHE / "go-build"),
    # By default Go makes its module cache read-only, so that rm -r fails. Without optimization, debug information and C
    # it compiles in half the time.
    "GOFLAGS": "-modcacherw '-gcflags=all=-N -l -dwarf=false' -ldflags=-w",
    "CGO_ENABLED": "0",
    # The compiler runs for a second for each package: less collection of garbage in it.
    "GOGC": "400",
}


def need(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"not run: {program} is not installed")


def run(
    *command: str | Path,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = TIMEOUT_S,
) -> str:
    """Run a program that must succeed, and return its standard output."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def go_program(directory: Path, program: Path) -> Path:
    """Build the Go module of a directory, and return the program's path."""
    need("go")
    run("go", "build", "-o", program, ".", directory=directory, environment=GO_ENVIRONMENT)
    return program


def rust_program(name: str, timeout_s: float | None = TIMEOUT_S) -> Path:
    """Build a Rust program, and return its path."""
    if is_left_out(RUST_THIRDS[name]):
        pytest.skip(f"not run: a part of KBROKER_TEST_THIRD={RUST_THIRDS[name]}")
    need("cargo")
    if subprocess.run(("cargo", "--version"), capture_output=True).returncode:
        # rustup installs the program cargo without a toolchain.
        pytest.skip("not run: cargo has no toolchain")
    target = CACHE / "rust"
    command = ("cargo", "build", "--quiet", "--locked", "--target-dir", target)
    environment = {"CARGO_HOME": str(CACHE / "cargo")}
    run(*command, directory=RUST_PROGRAMS[name], environment=environment, timeout_s=timeout_s)
    return target / "debug" / name


def javascript_directory() -> Path:
    """Return a directory with the packages of examples/javascript, whose programs can import them.

    It is not in the source tree, because node_modules would be part of that.
    """
    need("node", "npm")
    directory = CACHE / "examples-javascript"
    directory.mkdir(parents=True, exist_ok=True)
    with (CACHE / "examples-javascript.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.copytree(ROOT / "examples" / "javascript", directory, dirs_exist_ok=True)
        if not (directory / "node_modules" / "kafkajs").is_dir():
            npm = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock")
            run(*npm, "--cache", CACHE / "npm", directory=directory)
    return directory


if __name__ == "__main__":
    for program in (name for name in RUST_PROGRAMS if not is_left_out(RUST_THIRDS[name])):
        rust_program(program, timeout_s=None)
