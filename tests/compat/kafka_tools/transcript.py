"""Transcripts: commands of Kafka's tools with what they printed against Apache Kafka 4.4.0.

    $ kafka-topics --create --topic {orders} --partitions 2
    Created topic {orders}.
    $ kafka-topics --alter --topic {orders} --partitions 1 | sort
    Error while executing topic command : ...
    ! a line of standard error
    [1]

`{name}` is a unique name, `{node}` the broker id, `{all}` the common suffix of the unique names, `{tmp}` a directory.
`<<< 'text'` is standard input; `| sort`, `| grep WORD` and `| grep WORD sort` sort and select lines; `[1]` is an exit
status other than 0. `write FILE <<< 'text'` writes a file; `join KIND GROUP TOPIC...` starts a member of a classic,
consumer or share group, in the former two with an instance id, which stays until `leave`; `begin ID TOPIC PARTITION`
writes a record in a transaction, which `commit ID` ends. Ids, times, stack traces and the number of blanks are not
compared.

`python -m tests.compat.kafka_tools.transcript HOST:PORT` records all transcripts again. Those of three brokers are in
tests/compat/kafka_tools/cluster.
"""

import json
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.kafka_tools.jvm import Jvm, Run
from tests.compat.support import eventually

HERE = Path(__file__).parent / "transcripts"
# The transcript of a broker with an authorizer and super.users=User:ANONYMOUS.
ACLS = "acls"

# Log lines of clients about themselves and their retries.
CLIENT_LOG_LINES = re.compile(
    r"The consumer rebalance protocol \(KIP-848\)|WARN org.apache.kafka.clients.NetworkClient"
)
# Text before a broker id.
BEFORE_NODE = r'Leader: |LeaderId: +|Replicas: |Isr: |--broker |--entity-name |on broker |rather than |"id": '
USAGE = re.compile(r"^Option +Description *$", re.MULTILINE)
TRACE = re.compile(r"^\s+at |^\s*\.\.\. \d+ more")
REPLACED = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"TopicId: \S+"), "TopicId: ID"),
    (re.compile(r'"topicId":"[^"]*"'), '"topicId":"ID"'),
    (re.compile(r"\b1[78]\d{11}\b"), "TIME"),
    (re.compile(r"\bEpoch: \d+"), "Epoch: N"),
    (re.compile(r"\b(ClusterId: +)\S+"), r"\1ID"),
    (re.compile(r"\b(LeaderEpoch: +|HighWatermark: +)\d+"), r"\1N"),
    # The controller listens on its own port in Kafka, on the broker's in kbroker.
    (re.compile(r'("endpoints": \[)"[^"]*"'), r'\1"ENDPOINT"'),
    (re.compile(r"(console-consumer|adminclient)-\d+"), r"\1-N"),
    (re.compile(r"\[[^\]]*[Tt]hread[^\]]*\] "), ""),
    # Kafka sets it for all brokers of a new cluster, since it enables eligible leader replicas.
    (re.compile(r"min\.insync\.replicas=1,?"), ""),
    # The id of a member of the protocol of KIP-848 that has left, before its instance id.
    (re.compile(r"[\w-]{22}( +seat )"), r"MEMBER\1"),
    # Acknowledged offsets are in any order.
    (re.compile(r'"offsets":\[[\d,]+\]'), '"offsets":[N]'),
    (re.compile(r'("avg_throughput":)[\d.]+'), r"\1N"),
    (re.compile(r"[ \t]+"), " "),
)


READING = re.compile(r"--describe|--list|get-offsets|--dry-run|transactions (list|describe)")
# A column that identifies a table of kafka-transactions or kafka-metadata-quorum.
TABLES = {"ProducerId", "LastCaughtUpTimestamp"}
# Columns whose values depend on the broker or the time.
MASKED = {
    "Coordinator", "CoordinatorId", "ProducerId", "CurrentTransactionStartTimeMs", "TransactionDurationMs",
    "LastTimestamp", "NodeId", "LogEndOffset", "LastFetchTimestamp", "LastCaughtUpTimestamp",
}  # fmt: skip


@dataclass
class Step:
    """One command with its output and the comment lines before it."""

    command: str
    output: list[str]
    comment: list[str]


def read(text: str) -> list[Step]:
    """Parse a transcript."""
    steps: list[Step] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], [], comment))
            comment = []
        elif line.startswith("#") or not line:
            comment.append(line)
        else:
            steps[-1].output.append(line)
    return steps


def write(steps: Iterable[Step]) -> str:
    """Return the text of a transcript."""
    return "".join(line + "\n" for step in steps for line in [*step.comment, f"$ {step.command}", *step.output])


class Shell:
    """Runs the commands of one transcript against a broker."""

    def __init__(self, jvm: Jvm, bootstrap: str) -> None:
        self._jvm = jvm
        self._bootstrap = bootstrap
        self._ending = secrets.token_hex(4)
        self._directory = tempfile.TemporaryDirectory()
        self._member: Any = None
        self._member_id = ""
        self._producers: dict[str, Any] = {}
        versions = jvm.check("kafka-broker-api-versions", "--bootstrap-server", bootstrap).out
        match = re.search(r"id: (\d+)", versions)
        assert match
        self._node = match[1]

    def run(self, command: str) -> list[str]:
        """Run a command, and return its normalized output: standard output, standard error after `! `, exit status."""
        words = [self._filled(word) for word in shlex.split(command)]
        words, filters = _split(words, "|")  # grep WORD, sort
        words, stdin_words = _split(words, "<<<")
        stdin = stdin_words[0].encode().decode("unicode_escape").encode("latin-1").decode() if stdin_words else ""
        builtin = self.builtins().get(words[0])
        if builtin is not None:
            builtin(words[1:], stdin)
            return []
        run = self._run(words, stdin)
        if filters[:1] == ["grep"]:
            # a formatter of the console consumer writes its objects without line ends
            lines = run.out.replace("}{", "}\n{").splitlines()
            run = Run(run.code, "".join(line + "\n" for line in lines if filters[1] in line), "")
        shown = self._shown(run)
        return sorted(shown) if "sort" in filters else shown

    def builtins(self) -> dict[str, Callable[[list[str], str], None]]:
        """Return the commands that are no tools of Kafka; each is called with its words and standard input."""
        return {
            "join": self._join,
            "leave": self._leave,
            "write": self._write,
            "begin": self._begin,
            "commit": self._commit,
        }

    def _run(self, words: list[str], stdin: str) -> Run:
        tool, *arguments = words
        if tool in ("kafka-console-consumer", "kafka-console-share-consumer"):
            self._jvm.reset_console_consumer(tool)
        bootstrap = ("--bootstrap-server", self._bootstrap)
        if tool == "kafka-cluster":  # an option of its subcommands
            return self._jvm.run(tool, arguments[0], *bootstrap, *arguments[1:], stdin=stdin)
        return self._jvm.run(tool, *bootstrap, *arguments, stdin=stdin)

    def _filled(self, word: str) -> str:
        known = {"node": self._node, "tmp": self._directory.name, "all": f"-{self._ending}"}
        return re.sub(r"\{([\w.-]+)\}", lambda name: known.get(name[1], f"{name[1]}-{self._ending}"), word)

    def _shown(self, run: Run) -> list[str]:
        out = [self._plain(line) for line in masked(run.out.splitlines()) if not TRACE.search(line)]
        errors = USAGE.split(run.err)[0].splitlines()
        err = [line for line in errors if not CLIENT_LOG_LINES.search(line) and not TRACE.search(line)]
        shown = [*filter(None, out), *(f"! {line}" for line in map(self._plain, err) if line)]
        return [*shown, f"[{run.code}]"] if run.code else shown

    def _plain(self, line: str) -> str:
        if self._member_id:
            line = line.replace(self._member_id, "MEMBER")
        line = line.replace(self._bootstrap, "BOOTSTRAP").replace(self._directory.name, "{tmp}")
        line = re.sub(rf"([A-Za-z][\w.-]*)-{self._ending}", r"{\1}", line).replace(f"-{self._ending}", "{all}")
        line = re.sub(rf"({BEFORE_NODE}){self._node}\b", r"\1NODE", line)
        for pattern, replacement in REPLACED:
            line = pattern.sub(replacement, line)
        line = line.replace(f"BOOTSTRAP ({self._node})", "BOOTSTRAP (NODE)").strip()
        return _sorted_fields(line) if line.startswith('{"timestamp":TIME') else line

    def _write(self, words: list[str], text: str) -> None:
        Path(words[0]).write_text(text)

    def _join(self, words: list[str], _: str) -> None:
        kind, group, *topics = words
        clients = self._jvm.java.org.apache.kafka.clients
        strings = "org.apache.kafka.common.serialization.StringDeserializer"
        settings = {
            "bootstrap.servers": self._bootstrap, "group.id": group, "client.id": "me",
            "key.deserializer": strings, "value.deserializer": strings,
        }  # fmt: skip
        if kind != "share":
            settings |= {"group.instance.id": "seat", "group.protocol": kind, "auto.offset.reset": "earliest"}
        new = clients.consumer.KafkaShareConsumer if kind == "share" else clients.consumer.KafkaConsumer
        self._member = new(self._jvm.settings(settings))
        self._member.subscribe(self._listed(*topics))
        admin = clients.admin.Admin.create(self._jvm.settings(settings))
        polled = self._jvm.java.java.time.Duration.ofMillis(100)

        def assigned() -> bool:
            self._member.poll(polled)
            if kind != "share":
                return not self._member.assignment().isEmpty()
            members = admin.describeShareGroups(self._listed(group)).all().get()[group].members()
            return bool(members) and not next(iter(members)).assignment().topicPartitions().isEmpty()

        eventually(assigned, "the member's partitions", interval=0)
        described = admin.describeShareGroups if kind == "share" else admin.describeConsumerGroups
        [member] = described(self._listed(group)).all().get()[group].members()
        self._member_id = member.consumerId()
        admin.close()
        if kind != "share":
            self._member.seekToEnd(self._member.assignment())
            for partition in self._member.assignment():
                self._member.position(partition)
            self._member.commitSync()

    def _listed(self, *values: str) -> Any:
        values_list = self._jvm.java.java.util.ArrayList()
        for value in values:
            values_list.add(value)
        return values_list

    def _begin(self, words: list[str], _: str) -> None:
        transactional_id, topic, partition = words
        strings = "org.apache.kafka.common.serialization.StringSerializer"
        settings = {
            "bootstrap.servers": self._bootstrap, "transactional.id": transactional_id,
            "key.serializer": strings, "value.serializer": strings,
        }  # fmt: skip
        clients = self._jvm.java.org.apache.kafka.clients.producer
        producer = self._producers[transactional_id] = clients.KafkaProducer(self._jvm.settings(settings))
        producer.initTransactions()
        producer.beginTransaction()
        producer.send(clients.ProducerRecord(topic, int(partition), None, "record")).get()

    def _commit(self, words: list[str], _: str) -> None:
        producer = self._producers.pop(words[0])
        producer.commitTransaction()
        producer.close()

    def _leave(self, *_: object) -> None:
        self._member.close()
        self._member = None

    def close(self) -> None:
        """Delete the topics of the transcript, and close its clients."""
        if self._member is not None:
            self._leave()
        for producer in self._producers.values():
            producer.close()
        self._run(["kafka-topics", "--delete", "--if-exists", "--topic", f".*-{self._ending}"], "")
        self._directory.cleanup()


def _split(words: list[str], sign: str) -> tuple[list[str], list[str]]:
    index = words.index(sign) if sign in words else len(words)
    return words[:index], words[index + 1 :]


def masked(lines: Iterable[str]) -> Iterator[str]:
    """Replace the values in the masked columns of tables by the name of the column."""
    header: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if TABLES & set(cells):
            header = cells
        elif len(cells) == len(header):
            pairs = zip(header, cells, strict=True)
            cells = [name if name in MASKED and cell not in ("", "None") else cell for name, cell in pairs]
        yield " ".join(cells)


def replay(shell: Shell, steps: Iterable[Step], timeout_s: float = 0) -> Iterator[Step]:
    """Run the steps, and yield them with their output.

    Changes may become visible with a delay, so a command that only reads is repeated until its output is the recorded
    one, for at most `timeout_s`.
    """
    for step in steps:
        end = time.monotonic() + timeout_s
        output = shell.run(step.command)
        while output != step.output and READING.search(step.command) and time.monotonic() < end:
            output = shell.run(step.command)
        yield Step(step.command, output, step.comment)


def main(bootstrap: str, chosen: Callable[[Path], bool] = lambda _: True) -> None:
    """Record the transcripts again."""
    with tempfile.TemporaryDirectory() as directory:
        jvm = Jvm(Path(directory) / "log")
        for path in sorted(filter(chosen, HERE.glob("*.txt"))):
            shell = Shell(jvm, bootstrap)
            path.write_text(write(replay(shell, read(path.read_text()))))
            shell.close()
            print(path.name)
        jvm.close()


if __name__ == "__main__":
    names = sys.argv[2:]
    main(sys.argv[1], lambda path: path.stem in names if names else path.stem != ACLS)


def _sorted_fields(line: str) -> str:
    """Return an event of a verifiable client with its fields in order: theirs differs from one JVM to another."""
    return json.dumps(json.loads(re.sub(r"([:\[])([A-Z]+)\b", r'\1"\2"', line)), sort_keys=True)
