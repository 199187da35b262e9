"""Apache Kafka's own tools and Java clients, in one JVM that Python controls (Py4J).

Kafka's shell scripts (kafka-topics.sh and so on) set a class path and start a main class. Here the same main classes
run with the same arguments; one JVM for all of them saves about a second for each.
"""

import logging
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import CallbackServerParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JJavaError

from scripts.benchmark.peers import QUIET, kafka_classpath
from tests.compat.java_programs import java_command, kafka_jvm
from tests.compat.support import DEADLINE_S
from tests.compat.transactions.java_client import jar

# Kafka's scripts and the main classes behind them, as of 4.4.
MAIN_CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
}


@dataclass
class Run:
    """The output and exit status of a tool."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class _ExitRequested(Exception):
    """Ends a tool that wants to exit the JVM."""


class _ExitProcedure:
    """Replaces the exit of the JVM: Kafka's tools end with `Exit.exit(code)`, which can be redirected."""

    def __init__(self) -> None:
        self.code: int | None = None

    def execute(self, code: int, message: str | None) -> None:
        if self.code is None:
            self.code = code
        raise _ExitRequested(message)

    class Java:
        implements = ("org.apache.kafka.common.utils.internals.Exit$Procedure",)


class _ShutdownHooks:
    """Runs the shutdown hooks of a tool when the tool ends; the console producer sends its last records in one."""

    def __init__(self) -> None:
        self.pending: list[Any] = []

    def addShutdownHook(self, name: str, hook: Any) -> None:
        self.pending.append(hook)

    def run(self) -> None:
        while self.pending:
            self.pending.pop(0).run()

    class Java:
        implements = ("org.apache.kafka.common.utils.internals.Exit$ShutdownHookAdder",)


class Jvm:
    """One Java process with Kafka's jars; `run` starts a tool in it, `java` reaches any class."""

    def __init__(self, log: Path) -> None:
        logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)  # it logs every exit of a tool as an error
        self._log = log.open("w")
        self.gateway = JavaGateway.launch_gateway(
            classpath=f"{kafka_classpath()}:{find_jar_path()}:{jar('kafka-streams', '4.4.0')}",
            javaopts=["-Xmx512m", *kafka_jvm(), QUIET],
            die_on_exit=True,
            redirect_stdout=self._log,
            redirect_stderr=self._log,
        )
        self.gateway.start_callback_server(CallbackServerParameters(port=0, daemonize=True))
        server = self.gateway.java_gateway_server
        port = self.gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), port)
        self.java = self.gateway.jvm
        self._exit = _ExitProcedure()
        self._hooks = _ShutdownHooks()
        self.java.org.apache.kafka.common.utils.internals.Exit.setExitProcedure(self._exit)
        self.java.org.apache.kafka.common.utils.internals.Exit.setShutdownHookAdder(self._hooks)
        self._lock = threading.Lock()  # the standard streams belong to the whole JVM

    def run(self, tool: str, *arguments: str, stdin: str = "") -> Run:
        """Run one of Kafka's tools."""
        if tool.startswith("kafka-verifiable-"):  # it ends its JVM
            command = [*java_command(MAIN_CLASSES[tool], kafka_classpath()), *arguments]
            ended = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
            return Run(ended.returncode, ended.stdout, ended.stderr)
        java = self.java
        argv = self.gateway.new_array(java.String, len(arguments))
        for index, argument in enumerate(arguments):
            argv[index] = argument
        out, err = java.java.io.ByteArrayOutputStream(), java.java.io.ByteArrayOutputStream()
        system = java.System
        with self._lock:
            before = system.out, system.err, getattr(system, "in")
            system.setOut(java.java.io.PrintStream(out, True, "UTF-8"))
            system.setErr(java.java.io.PrintStream(err, True, "UTF-8"))
            system.setIn(java.java.io.ByteArrayInputStream(stdin.encode()))
            self._exit.code = None
            failure = ""
            try:
                self._main(MAIN_CLASSES[tool], argv)
            except Py4JJavaError as error:
                failure = "" if self._exit.code is not None else str(error)
            finally:
                self._hooks.run()
                system.setOut(before[0])
                system.setErr(before[1])
                system.setIn(before[2])
        code = self._exit.code if self._exit.code is not None else int(bool(failure))
        # The rest is the stack trace of _ExitRequested.
        errors = err.toString("UTF-8").partition("An exception was raised by the Python Proxy")[0]
        return Run(code, out.toString("UTF-8"), errors + failure)

    def consume(self, *arguments: str) -> Run:
        """Run kafka-console-consumer, which must succeed."""
        self.reset_console_consumer()
        return self.check("kafka-console-consumer", *arguments)

    def reset_console_consumer(self, tool: str = "kafka-console-consumer") -> None:
        """Reset its message count, which --max-messages limits over all runs in one JVM."""
        consumer = self.java.Class.forName(MAIN_CLASSES[tool])
        count = consumer.getDeclaredField("messageCount")
        count.setAccessible(True)
        count.setInt(None, 0)

    def check(self, tool: str, *arguments: str, stdin: str = "") -> Run:
        """Run a tool that must succeed."""
        result = self.run(tool, *arguments, stdin=stdin)
        assert result.code == 0, f"{tool} {' '.join(arguments)} ended with {result.code}:\n{result.out}\n{result.err}"
        return result

    def settings(self, values: Mapping[str, object]) -> Any:
        """Return a java.util.HashMap, the configuration of every Java client."""
        settings = self.java.java.util.HashMap()
        for name, value in values.items():
            settings.put(name, str(value))
        return settings

    def log(self) -> str:
        """Return what the clients in this JVM have logged."""
        return Path(self._log.name).read_text()

    def close(self) -> None:
        self.gateway.shutdown()
        self._log.close()

    def _main(self, name: str, argv: Any) -> None:
        main = self.java
        for part in name.split("."):
            main = getattr(main, part)
        main.main(argv)
