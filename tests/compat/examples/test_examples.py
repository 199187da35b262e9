"""Every program of examples/ produces ten records and consumes them, or works off ten tasks."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.benchmark.peers import kafka_classpath
from tests.compat import toolchains
from tests.compat.java_programs import kafka_jvm
from tests.compat.spark.session import CONNECTOR, IVY, PROVIDED, connector_packages, jvm_options
from tests.compat.spark.session import HERE as SPARK_TESTS
from tests.compat.toolchains import GO_ENVIRONMENT, ROOT, javascript_directory, need

pytestmark = [pytest.mark.compat, pytest.mark.feature("examples")]

EXAMPLES = ROOT / "examples"


def run(*command: str | Path, directory: Path = EXAMPLES, environment: dict[str, str] | None = None) -> str:
    return toolchains.run(*command, directory=directory, environment=environment)


def python(library: str) -> Callable[[str, str], str]:
    return lambda bootstrap, topic: run(sys.executable, f"python/produce_consume_{library}.py", bootstrap, topic)


def java(bootstrap: str, topic: str) -> str:
    need("java", "javac", "mvn")
    return run("java", "-Xmx256m", *kafka_jvm(), "-cp", kafka_classpath(), "java/ProduceConsume.java", bootstrap, topic)


def go(bootstrap: str, topic: str) -> str:
    need("go")
    return run("go", "run", ".", bootstrap, topic, directory=EXAMPLES / "go", environment=GO_ENVIRONMENT)


def javascript(bootstrap: str, topic: str) -> str:
    return run("node", "produce_consume.js", bootstrap, topic, directory=javascript_directory())


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
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
    }
    options = [option for name, value in settings.items() for option in ("--conf", f"{name}={value}")]
    with connector_packages():
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


def java_queue(bootstrap: str, topic: str) -> str:
    need("java", "javac", "mvn")
    return run("java", "-Xmx256m", *kafka_jvm(), "-cp", kafka_classpath(), "java/WorkQueue.java", bootstrap, topic)


def go_queue(bootstrap: str, topic: str) -> str:
    need("go")
    return run("go", "run", ".", bootstrap, topic, directory=EXAMPLES / "go/work_queue", environment=GO_ENVIRONMENT)


def python_queue(bootstrap: str, topic: str) -> str:
    return run(sys.executable, "python/work_queue_confluent.py", bootstrap, topic)


WORK_QUEUES = {"confluent_kafka": python_queue, "kafka_tools": java_queue, "go": go_queue}


@pytest.mark.parametrize("client", [pytest.param(client, marks=pytest.mark.client(client)) for client in WORK_QUEUES])
def test_a_task_that_fails_is_delivered_again(bootstrap: str, name: str, client: str) -> None:
    set_config = ("configs", "set", "group", f"{name}-workers", "share.auto.offset.reset=earliest")
    run(sys.executable, "-m", "kbroker", *set_config, "--bootstrap", bootstrap)
    output = WORK_QUEUES[client](bootstrap, name).splitlines()
    assert sorted(line for line in output if line.endswith("done")) == [f"task {number} done" for number in range(10)]
    failed = output.index("task 3 failed, and will be delivered again")
    assert failed < output.index("task 3 done")


def control_java() -> str:
    need("java", "javac", "mvn")
    options = ("-Xmx256m", *kafka_jvm(), "-cp", kafka_classpath())
    return run("java", *options, "java/ControlledBroker.java", sys.executable, "-m", "kbroker")


def control_go() -> str:
    need("go")
    command = ("go", "run", "./control", sys.executable, "-m", "kbroker")
    return run(*command, directory=EXAMPLES / "go", environment=GO_ENVIRONMENT)


def control_javascript() -> str:
    return run("node", "control.js", sys.executable, "-m", "kbroker", directory=javascript_directory())


CONTROLS = {"kafka_tools": control_java, "go": control_go, "javascript": control_javascript}


@pytest.mark.parametrize("client", [pytest.param(client, marks=pytest.mark.client(client)) for client in CONTROLS])
def test_a_test_in_another_language_controls_the_broker(client: str) -> None:
    assert CONTROLS[client]() == "passed\n"


def check(output: str) -> None:
    records = [line for line in output.splitlines() if " = value " in line]
    assert sorted(line.partition(" ")[2] for line in records) == sorted(f"key-{n % 3} = value {n}" for n in range(10))


@pytest.mark.client("cli")
def test_every_program_is_listed_and_tested() -> None:
    programs = [path for path in EXAMPLES.rglob("*") if path.suffix in {".py", ".java", ".go", ".js"}]
    programs = [path for path in programs if "node_modules" not in path.parts]
    page = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in programs if path.name not in page] == []
    systems = (Path(__file__).parent / "test_systems.py").read_text()
    first_steps = [path for path in programs if str(path.relative_to(EXAMPLES)) not in systems]
    assert len(first_steps) == len(PROGRAMS) + len(WORK_QUEUES) + len(CONTROLS) + 2
