"""Programs that consume, transform and produce, as processes that are killed, frozen and started again."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.benchmark.peers import QUIET, kafka_classpath
from tests.compat.support import eventually, unique
from tests.compat.transactions.programs.stages import GIVEN_UP

PROGRAMS = Path(__file__).with_name("programs")
PARTITIONS = 4
# A slow machine, and a broker that is killed and starts again on the way.
LONG = 60.0


def commands(directory: Path) -> dict[str, list[str]]:
    """How each client's program is started; compiles what is Java into `directory`."""
    found = {
        "confluent_kafka": [sys.executable, str(PROGRAMS / "flow_confluent.py")],
        "kafka_python": [sys.executable, str(PROGRAMS / "flow_python.py")],
    }
    if shutil.which("java") and shutil.which("mvn"):
        compiled(PROGRAMS / "Flow.java", directory, kafka_classpath())
        found["kafka_tools"] = java("Flow", f"{directory}:{kafka_classpath()}")
    return found


def compiled(source: Path, directory: Path, classpath: str) -> None:
    command = ["javac", "-proc:none", "-nowarn", "-d", str(directory), "-cp", classpath, str(source)]
    subprocess.run(command, check=True)


def java(main: str, classpath: str) -> list[str]:
    quick = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", QUIET.replace("warn", "off")]
    return ["java", *quick, "-cp", classpath, main]


class Program:
    """One process after another with the same arguments."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._command = list(command)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._stop_at = ""
        self.name = directory.name
        directory.mkdir()

    def start(self) -> None:
        self._starts += 1
        with self._output().open("wb") as output, (self._directory / f"errors-{self._starts}").open("wb") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, stderr=errors)

    def revive(self) -> None:
        """Starts it again when it has given up; any other end is a failure."""
        if self._process is not None and (code := self._process.poll()) is not None:
            assert code == GIVEN_UP, f"ended with {code}: {self.tail()}"
            self.start()
            if self._stop_at:
                self.stop_at(self._stop_at)

    def count(self, stage: str) -> int:
        """How often a stage was reached, over all starts."""
        return sum(path.read_bytes().count(b"\n%s\n" % stage.encode()) for path in self._outputs())

    def seen(self) -> Counter[str]:
        return Counter(line.partition(":")[0] for line in self.lines())

    def failures(self) -> int:
        """How often it was told that a transaction is not to be."""
        seen = self.seen()
        return seen["aborted"] + seen["gave up"]

    def lines(self) -> list[str]:
        return [line for path in self._outputs() for line in path.read_text().splitlines()]

    def stop_at(self, stage: str) -> None:
        """It waits when it gets there next."""
        self._stop_at = stage
        self._say(stage)

    def stopped(self, stage: str) -> bool:
        return f"stopped {stage}\n" in self._output().read_text()

    def go_on(self) -> None:
        self._stop_at = ""
        self._say("")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
            self._stop_at = ""

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _signal(self, which: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, which)

    def _outputs(self) -> list[Path]:
        return [self._directory / f"output-{start}" for start in range(1, self._starts + 1)]

    def _output(self) -> Path:
        return self._directory / f"output-{self._starts}"

    def tail(self) -> str:
        """What it said last."""
        output = self._output().read_text().splitlines()[-5:]
        errors = (self._directory / f"errors-{self._starts}").read_text()[-3000:]
        return f"{self.name}: {' '.join(output)}\n{errors}"


class Flow:
    """Two programs of one client in one group, from the source to a topic of their own."""

    def __init__(
        self, client: str, command: list[str], bootstrap: str, source: str, directory: Path, session_timeout_ms: int
    ) -> None:
        self.client = client
        self.group = unique(f"flow-{client}")
        self.target = unique(f"target-{client}")
        self.programs = []
        for number in range(2):
            named = [bootstrap, self.group, source, self.target, f"{self.group}-{number}"]
            timeouts = [str(session_timeout_ms), str(3 * session_timeout_ms)]
            self.programs.append(Program([*command, *named, *timeouts], directory / f"{client}-{number}"))

    def start(self) -> None:
        for program in self.programs:
            program.start()

    def kill(self) -> None:
        for program in self.programs:
            program.kill()

    def report(self) -> str:
        seen = sum((program.seen() for program in self.programs), Counter())
        return (
            f"{self.client}: {seen['started']} starts, {seen['sent']} transactions begun, {seen['committed']} "
            f"acknowledged, {seen['aborted']} aborted after an error, {seen['gave up']} times begun anew after one"
        )


def meanwhile(flows: Sequence[Flow], condition: Callable[[], bool], what: str) -> None:
    """Waits for the condition; programs that give up are started again, and failures tell how far each has come."""

    def met() -> bool:
        for flow in flows:
            for program in flow.programs:
                program.revive()
        return condition()

    try:
        eventually(met, what, LONG, interval=0.2)
    except AssertionError as error:
        told = [program.tail() for flow in flows for program in flow.programs]
        raise AssertionError("\n".join([str(error), *told])) from error


def progress(flows: Sequence[Flow], by: int = 1, programs: Sequence[int] = (0, 1)) -> None:
    """Every program, or only these of each flow, has committed so many more transactions."""
    waited = [flow.programs[number] for flow in flows for number in programs]
    wanted = {program: program.count("committed") + by for program in waited}

    def reached() -> bool:
        return all(program.count("committed") >= count for program, count in wanted.items())

    meanwhile(flows, reached, f"{by} more transactions of every program")


def stop_all(flows: Sequence[Flow], stage: str, number: int) -> list[Program]:
    """One program of each flow waits at this stage."""
    stopped = [flow.programs[number] for flow in flows]
    for program in stopped:
        program.stop_at(stage)
    meanwhile(flows, lambda: all(program.stopped(stage) for program in stopped), f"every program at {stage}")
    return stopped


class Source:
    """A topic that an idempotent producer writes to, some hundred records a second, until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self.topic = unique("source")
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        assert self._producer.flush(LONG) == 0

    def abandon(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            for partition, part in enumerate(self.written):
                for _ in range(5):
                    value = b"%d %d" % (partition, len(part))
                    part.append(value)
                    self._producer.produce(self.topic, value, partition=partition)
            self._producer.poll(0)


def create(bootstrap: str, topics: Sequence[str], configs: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=configs or {}) for name in topics]).values():
        made.result(20)


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    """The group's stable offsets of each partition; empty while they are not known."""
    asked = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asked)], require_stable=True)
        found = answer[group].result(20).topic_partitions
    except KafkaException:
        return []
    return [tp.offset for tp in found]


def members(bootstrap: str, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return len(admin.describe_consumer_groups([group])[group].result(20).members)


def drained(flows: Sequence[Flow], bootstrap: str, source: Source) -> None:
    """Every flow has committed the end of every partition."""
    wanted = [len(part) for part in source.written]
    meanwhile(
        flows,
        lambda: all(committed(bootstrap, flow.group, source.topic) == wanted for flow in flows),
        f"every group at {wanted}",
    )
