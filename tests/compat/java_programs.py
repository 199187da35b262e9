"""Compiles the Java programs of the tests, once for each version of their source."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from scripts.benchmark.peers import CACHE, QUIET, kafka_classpath

CLASSES = CACHE.parent / "test-classes"
# For programs that run for some seconds: no optimizing compiler, one thread for garbage collection.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


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
    return f"{classes}:{libraries}"


def java_command(main: str, classpath: str, heap: str = "128m") -> list[str]:
    """Return a command that starts quickly and logs nothing."""
    return ["java", f"-Xmx{heap}", *QUICK_JVM, QUIET.replace("warn", "off"), "-cp", classpath, main]
