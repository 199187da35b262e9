"""Compiles the Java programs of the tests, once for each version of their source, and lets JVMs start quickly."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from scripts.benchmark.peers import CACHE, QUIET, kafka_classpath

CLASSES = CACHE.parent / "test-classes"
ARCHIVES = CACHE.parent / "class-archives"
# For programs that run for some seconds: no optimizing compiler, one thread for garbage collection.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def class_archive(name: str, jars: Path, train: Callable[[str], object]) -> list[str]:
    """Return the options of a JVM that maps its classes from an archive: to load and verify them takes most of a start.

    `train` starts a JVM with the option that it receives, which then writes the archive as it ends. That happens once
    for each installation of Java and of the jars in `jars`.
    """
    java = Path(shutil.which("java") or "").resolve()
    key = hashlib.sha256(f"{java} {java.stat().st_mtime_ns} {jars} {jars.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    archive = ARCHIVES / f"{name}-{key}.jsa"
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with (ARCHIVES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            partial = archive.with_suffix(".partial")
            train(f"-XX:ArchiveClassesAtExit={partial}")
            if partial.exists():
                partial.rename(archive)
    # Xlog: a JVM that cannot use the archive must not say so in the output of a command.
    return ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def kafka_jvm() -> list[str]:
    """Return the options of a JVM that runs for some seconds and whose classpath begins with Kafka's jars."""
    to_nobody = ("--bootstrap-server", "127.0.0.1:1", "--producer-props", "max.block.ms=300")
    producer = ("--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1", *to_nobody)

    def train(option: str) -> None:
        command = ("java", *QUICK_JVM, "-Xlog:disable", option, "-cp", kafka_classpath())
        subprocess.run((*command, "org.apache.kafka.tools.ProducerPerformance", *producer), capture_output=True)

    return [*QUICK_JVM, *class_archive("kafka", CACHE, train)]


def classpath_of(source: Path, *jars: Path) -> str:
    """Compile a program against Kafka's jars and `jars`, and return the classpath to run it with."""
    libraries = ":".join([kafka_classpath(), *map(str, jars)])
    classes = CLASSES / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not classes.exists():
        CLASSES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CLASSES) as directory:
            compiled = Path(directory) / "classes"
            options = [*(f"-J{option}" for option in QUICK_JVM), "-proc:none", "-nowarn"]
            command = ["javac", *options, "-d", str(compiled), "-cp", libraries, str(source)]
            subprocess.run(command, check=True)
            # Another process may have compiled it in the meantime.
            if not classes.exists():
                os.rename(compiled, classes)
    return f"{libraries}:{classes}"


def java_command(main: str, classpath: str, heap: str = "128m") -> list[str]:
    """Return a command that starts quickly and logs nothing."""
    return ["java", f"-Xmx{heap}", *kafka_jvm(), QUIET.replace("warn", "off"), "-cp", classpath, main]
