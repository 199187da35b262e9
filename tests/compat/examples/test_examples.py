"""Every program of examples/ produces ten records and consumes them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.benchmark.peers import kafka_classpath
from tests.compat.java_programs import QUICK_JVM
from tests.compat.spark.session import CONNECTOR, IVY, PROVIDED, ivy_lock
from tests.compat.spark.session import HERE as SPARK_TESTS

pytestmark = [pytest.mark.compat, pytest.mark.feature("examples")]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
CACHE = ROOT / ".cache"
# The first run downloads Go modules, npm packages, or jars.
TIMEOUT_S = 500


def run(*command: str | Path, directory: Path = EXAMPLES, environment: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def need(*programs: str) -> None:
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"not run: {program} is not installed")


def python(library: str) -> Callable[[str, str], str]:
    return lambda bootstrap, topic: run(sys.executable, f"python/produce_consume_{library}.py", bootstrap, topic)


def java(bootstrap: str, topic: str) -> str:
    need("java", "javac", "mvn")
    return run("java", "-Xmx256m", *QUICK_JVM, "-cp", kafka_classpath(), "java/ProduceConsume.java", bootstrap, topic)


def go(bootstrap: str, topic: str) -> str:
    need("go")
    environment = {
        "GOPATH": str(CACHE / "go"),
        "GOCACHE": str(CACHE / "go-build"),
        # By default Go makes its module cache read-only, so that rm -r fails. Without optimization, debug information
        # and C it compiles in half the time.
        "GOFLAGS": "-modcacherw '-gcflags=all=-N -l -dwarf=false' -ldflags=-w",
        "CGO_ENABLED": "0",
    }
    return run("go", "run", ".", bootstrap, topic, directory=EXAMPLES / "go", environment=environment)


def javascript(bootstrap: str, topic: str) -> str:
    need("node", "npm")
    # Not next to the program: node_modules would be part of the source tree.
    directory = CACHE / "examples-javascript"
    shutil.copytree(EXAMPLES / "javascript", directory, dirs_exist_ok=True)
    if not (directory / "node_modules" / "kafkajs").is_dir():
        npm = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--cache", CACHE / "npm")
        run(*npm, directory=directory)
    return run("node", "produce_consume.js", bootstrap, topic, directory=directory)


def spark(bootstrap: str, topic: str) -> str:
    need("java")
    submit = shutil.which("spark-submit", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if submit is None:
        pytest.skip("not run: pyspark is not installed (extra `spark`)")
    settings = {
        "spark.jars.excludes": PROVIDED,
        "spark.jars.ivySettings": SPARK_TESTS / "ivysettings.xml",
        "spark.jars.ivy": IVY,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(QUICK_JVM),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
    }
    options = [option for name, value in settings.items() for option in ("--conf", f"{name}={value}")]
    with ivy_lock():
        return run(
            *(submit, "--master", "local[2]", "--packages", CONNECTOR, *options),
            *("spark/produce_consume.py", bootstrap, topic),
            environment={"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )


# By the client's column in the matrix.
PROGRAMS: dict[str, Callable[[str, str], str]] = {
    "kafka_python": python("kafka_python"),
    "confluent_kafka": python("confluent"),
    "aiokafka": python("aiokafka"),
    "go": go,
    "javascript": javascript,
}


@pytest.mark.parametrize("client", [pytest.param(client, marks=pytest.mark.client(client)) for client in PROGRAMS])
def test_the_example_produces_and_consumes_ten_records(bootstrap: str, name: str, client: str) -> None:
    check(PROGRAMS[client](bootstrap, name))


@pytest.mark.client("kafka_tools")
def test_java_example(bootstrap: str, name: str) -> None:
    check(java(bootstrap, name))


@pytest.mark.client("spark")
def test_spark_example(bootstrap: str, name: str) -> None:
    check(spark(bootstrap, name))


def check(output: str) -> None:
    records = [line for line in output.splitlines() if " = value " in line]
    assert sorted(line.partition(" ")[2] for line in records) == sorted(f"key-{n % 3} = value {n}" for n in range(10))


@pytest.mark.client("cli")
def test_every_program_is_listed_and_tested() -> None:
    programs = [path for path in EXAMPLES.rglob("*") if path.suffix in {".py", ".java", ".go", ".js"}]
    programs = [path for path in programs if "node_modules" not in path.parts]
    page = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in programs if path.name not in page] == []
    assert len(programs) == len(PROGRAMS) + 2
