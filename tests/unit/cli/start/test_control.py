"""The control of `kbroker start --dev` over HTTP: its calls, and what it refuses."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.start.control import MAX_BODY_BYTES, ControlServer
from kbroker.cli.start.control_calls import ROUTES, ControlCalls
from kbroker.cli.start.dev import run_dev
from kbroker.cli.start.options import StartOptions, load_properties
from kbroker.client.connection import BrokerConnection
from kbroker.testing import Broker
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def server(kafka: Broker) -> Iterator[ControlServer]:
    with ControlServer("127.0.0.1", 0, ControlCalls(kafka), ["kbroker"]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Control:
    def __init__(self, server: ControlServer) -> None:
        self._address = server.server_address

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        client = http.client.HTTPConnection(str(self._address[0]), int(self._address[1]), timeout=20)
        client.request(method, path, body, headers or {})
        response = client.getresponse()
        return response.status, response.read().decode()

    def get(self, path: str) -> Any:
        status, body = self.send("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, status: int = 200, **fields: Any) -> Any:
        found, body = self.send("POST", path, json.dumps(fields).encode(), JSON)
        assert found == status, body
        return json.loads(body)


@pytest.fixture
def control(server: ControlServer, kafka: Broker) -> Iterator[Control]:
    control = Control(server)
    yield control
    if kafka.leftovers() or kafka.clock.is_moved or kafka.disk.was_full:
        control.post("/reset")
    kafka.request_log.clear()


@pytest.fixture
def app(kafka: Broker, control: Control) -> Iterator[BrokerConnection]:
    """The connection of a program, as the broker sees it."""
    host, _, port = kafka.bootstrap.rpartition(":")
    with BrokerConnection((host, int(port)), client_id="app") as connection:
        yield connection


def ask_metadata(app: BrokerConnection, topic: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return app.request(request, MetadataResponse).topics[0].error_code


def test_records_come_back_with_the_fields_of_the_command_line(control: Control) -> None:
    topic = control.post("/topics", partitions=2, config={"retention.ms": 3_600_000})["topic"]
    rows = [{"key": "k", "value": "ü", "headers": [{"key": "h", "value": "1"}]}, {"value_base64": "/w=="}]
    assert control.post("/produce", topic=topic, records=rows, partition=1)["records"] == [
        {"partition": 1, "offset": 0},
        {"partition": 1, "offset": 1},
    ]
    first, second = control.post("/consume", topic=topic, n=2)["records"]
    assert {name: first[name] for name in ("topic", "partition", "offset", "timestamp_type", *rows[0])} == {
        "topic": topic, "partition": 1, "offset": 0, "timestamp_type": "CreateTime", **rows[0],
    }  # fmt: skip
    assert (second["key"], second["value_base64"], second["headers"]) == (None, "/w==", [])
    assert control.get("/topics") == {"topics": [topic]}
    assert control.post("/topics/delete", topic=topic) == {}
    assert control.get("/topics") == {"topics": []}


def test_the_clock_moves_and_a_full_disk_refuses_records(control: Control) -> None:
    topic = control.post("/topics", config={"retention.ms": 3_600_000})["topic"]
    control.post("/produce", topic=topic, records=[{"value": "old"}])
    before = control.get("/status")
    assert (before["moved_ms"], before["running"], before["disk_full"]) == (0, True, False)
    after = control.post("/clock/advance", hours=2)
    assert after["now_ms"] - before["now_ms"] >= 7_200_000
    assert control.post("/consume", topic=topic) == {"records": []}
    control.post("/disk/fill")
    assert control.get("/status")["disk_full"]
    assert "KAFKA_STORAGE_ERROR" in control.post("/produce", 409, topic=topic, records=[{"value": "lost"}])["error"]
    control.post("/disk/free")


def test_faults_and_requests(control: Control, app: BrokerConnection) -> None:
    topic = control.post("/topics")["topic"]
    fault = control.post("/faults", api="metadata", topic=topic, error="LEADER_NOT_AVAILABLE", count=2)
    assert [ask_metadata(app, topic) for _ in range(3)] == [5, 5, 0]
    expected = {"api": "Metadata", "topic": topic, "error": "LEADER_NOT_AVAILABLE", "count": 2, "hits": 2}
    (listed,) = control.get("/faults")["faults"]
    assert expected.items() <= listed.items()
    assert control.post("/faults/remove", number=fault["number"])["hits"] == 2
    assert control.get("/faults") == {"faults": []}
    assert control.post("/faults/remove", 404, number=fault["number"]) == {
        "error": f"there is no fault {fault['number']}"
    }
    found = control.get(f"/requests?api=Metadata&topic={topic}&client_id=app")["requests"]
    assert [(row["api"], row["topics"], row["client_id"]) for row in found] == [("Metadata", [topic], "app")] * 3
    assert control.get("/requests?client_id=other") == {"requests": []}


def test_the_broker_ends_and_starts_while_its_control_goes_on(control: Control) -> None:
    topic = control.post("/topics")["topic"]
    address = control.get("/status")["bootstrap"]
    for end in ("/kill", "/stop"):
        control.post(end)
        assert not control.get("/status")["running"]
        assert "cannot connect" in control.post("/consume", 409, topic=topic)["error"]
        control.post("/start")
    assert control.get("/status")["bootstrap"] == address
    assert control.get("/topics") == {"topics": [topic]}


def test_a_reset_says_what_was_left_and_removes_it(control: Control) -> None:
    address = control.get("/status")["bootstrap"]
    control.post("/topics", name="orders")
    control.post("/faults", api="Produce", drop=True)
    control.post("/clock/advance", hours=1)
    assert control.post("/reset") == {"left": ["the fault Produce drop", "the topic orders"]}
    control.post("/kill")
    assert control.post("/reset") == {"left": ["a stopped broker"]}
    status = control.get("/status")
    assert (status["bootstrap"], status["moved_ms"], status["running"]) == (address, 0, True)
    assert control.get("/topics") == {"topics": []}
    assert control.get("/faults") == {"faults": []}


def test_a_reset_that_keeps_the_data_removes_faults_and_requests(control: Control, app: BrokerConnection) -> None:
    topic = control.post("/topics")["topic"]
    ask_metadata(app, topic)
    control.post("/faults", api="Produce", drop=True)
    control.post("/reset", keep_data=True)
    assert (control.get("/topics"), control.get("/faults")) == ({"topics": [topic]}, {"faults": []})
    assert control.get("/requests") == {"requests": []}
    control.post("/clock/advance", hours=1)
    control.post("/reset", keep_data=True)
    assert control.get("/topics") == {"topics": []}


def test_clients_get_the_address_of_a_container_and_the_control_still_reaches_the_broker(server: ControlServer) -> None:
    """The published port of a container is known when it runs, and nothing listens on it inside."""
    control = Control(server)
    before = control.get("/status")["bootstrap"]
    try:
        control.post("/advertise", address="elsewhere.invalid:19092")
        assert control.get("/status")["bootstrap"] == "elsewhere.invalid:19092"
        topic = control.post("/topics")["topic"]
        control.post("/produce", topic=topic, records=[{"value": "v"}])
        assert len(control.post("/consume", topic=topic)["records"]) == 1
        assert "HOST:PORT" in control.post("/advertise", 400, address="a:1,PLAINTEXT://b:2")["error"]
        assert "wildcard" in control.post("/advertise", 400, address="0.0.0.0:1")["error"]
    finally:
        control.post("/advertise", address=before)


def test_a_wait_that_is_not_over_in_time_is_a_conflict(control: Control) -> None:
    assert control.post("/groups/wait", 409, group="g", members=1, timeout_s=0.1) == {
        "error": "group g is not at members=1 after 0.1 s, but Dead with 0 members, lag None"
    }
    assert control.post("/groups/wait", group="g", members=0) == {
        "group": "g", "type": "classic", "state": "Dead", "members": [], "lag": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "status", "error"),
    [
        ("/consume", {"topic": "absent"}, 404, "topic absent: UNKNOWN_TOPIC_OR_PARTITION"),
        ("/consume", {"topic": 1}, 400, "topic must be a string"),
        ("/consume", {"topic": "t", "timeout_s": True}, 400, "timeout_s must be a number"),
        ("/consume", {"topic": "t", "timeout_s": 1e9}, 400, "timeout_s must be at most 600"),
        ("/consume", {}, 400, "the field 'topic' is missing"),
        ("/kill", {"force": True}, 400, "there is no field 'force'; the fields are: none"),
        ("/topics", {"config": [1]}, 400, "config must be an object or null"),
        ("/topics", {"partitions": 2**70}, 400, "partitions must be at most"),
        ("/topics", {"partitions": 2**40}, 400, ""),
        ("/topics", {"name": "a b"}, 409, "topic a b: "),
        ("/produce", {"topic": "t", "records": ["v"]}, 400, "not a JSON object"),
        ("/faults", {"api": "Prodcue", "drop": True}, 400, "there is no API 'Prodcue'"),
        ("/clock/advance", {"hours": -1}, 400, "the clock moves forward only"),
        ("/clock/advance", {"days": 1e18}, 400, ""),
        ("/nothing", {}, 404, "there is no call /nothing"),
    ],
)
def test_what_cannot_be_done_is_an_error(
    control: Control, path: str, fields: dict[str, Any], status: int, error: str
) -> None:
    assert control.post(path, status, **fields)["error"].startswith(error)


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/status", {"Host": "kbroker:9080"}, None, 200),
        ("GET", "/status", {"Host": "[::1]:9080"}, None, 200),
        ("GET", "/status", {"Host": "localhost"}, None, 200),
        # After DNS rebinding a web page reaches this address with its own name.
        ("GET", "/status", {"Host": "evil.example"}, None, 403),
        ("GET", "/status", {"Host": "127.0.0.1.evil.example"}, None, 403),
        ("GET", "/status", {"Host": "["}, None, 400),
        ("GET", "/status", {"Host": ""}, None, 403),
        ("GET", "/status", {"Host": "localhost:9080", "Origin": "http://localhost:9080"}, None, 200),
        ("GET", "/status", {"Origin": "http://evil.example"}, None, 403),
        ("GET", "/status", {"Origin": "null"}, None, 403),
        ("POST", "/kill", JSON | {"Origin": "http://localhost:3000"}, b"{}", 403),
        # What a web page can send without asking first.
        ("POST", "/kill", {"Content-Type": "text/plain"}, b"{}", 415),
        ("POST", "/kill", {}, b"{}", 415),
        ("OPTIONS", "/kill", {}, None, 501),
        ("GET", "/kill", {}, None, 405),
        ("POST", "/kill", JSON, b"[]", 400),
        ("POST", "/kill", JSON, b"{", 400),
        ("POST", "/kill", JSON, b"[" * 100_000, 400),
        ("POST", "/kill", JSON, b"\xff", 400),
        ("POST", "/clock/advance", JSON, b'{"hours": NaN}', 400),
        ("POST", "/clock/advance", JSON, b'{"hours": 1e999}', 400),
        ("POST", "/kill", JSON | {"Content-Length": str(MAX_BODY_BYTES + 1)}, b"{}", 413),
        ("POST", "/kill", JSON | {"Content-Length": "9" * 5000}, b"{}", 413),
        ("POST", "/kill", JSON | {"Content-Length": "-1"}, b"{}", 411),
        ("POST", "/kill", JSON | {"Transfer-Encoding": "chunked"}, b"0\r\n\r\n", 411),
    ],
)
def test_requests_of_others_are_refused(
    control: Control, kafka: Broker, method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    found, text = control.send(method, path, body, headers)
    assert found == status, text
    assert status == 200 or list(json.loads(text)) == ["error"]
    assert kafka.is_running


def test_a_line_that_is_too_long_is_an_error_in_json(control: Control, server: ControlServer) -> None:
    with socket.create_connection(("127.0.0.1", int(server.server_address[1])), 10) as client:
        client.sendall(b"GET /" + b"x" * 70_000)
        response = b"".join(iter(lambda: client.recv(4096), b""))
    assert b" 414 " in response
    assert b'{"error": ' in response


def test_the_first_page_has_a_command_line_for_each_call(control: Control) -> None:
    status, page = control.send("GET", "/")
    assert status == 200
    for route in ROUTES:
        assert f"\n{route.method} {route.path}: " in page
        assert route.example in page
        assert route.method == "GET" or isinstance(json.loads(route.example), dict)


def test_it_is_a_process_that_prints_one_line_and_ends_with_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kbroker", "start", "--dev", "--control", "127.0.0.1:0"]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            ready = re.fullmatch(r"kbroker ready: bootstrap 127\.0\.0\.1:\d+ control http://(127\.0\.0\.1:\d+)\n", line)
            assert ready is not None, process.communicate()
            client = http.client.HTTPConnection(ready[1], timeout=20)
            client.request("GET", "/topics")
            assert client.getresponse().read() == b'{"topics": []}'
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 0
    assert (tmp_path / "data" / "data" / "meta.properties").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (StartOptions(control="127.0.0.1:0"), "--control needs --dev"),
        (StartOptions(dev=True, control="0.0.0.0:0"), "can be reached from other machines"),
        (StartOptions(dev=True, control="x"), "--control must be HOST:PORT"),
        (StartOptions(dev=True, control_insecure_host=["kbroker"]), "needs --control"),
        (StartOptions(dev=True, secure=True), "excludes --secure"),
        (StartOptions(dev=True, brokers=3), "excludes --brokers"),
        (StartOptions(dev=True, add_scram=["SCRAM-SHA-256=[name=a,password=b]"]), "excludes --add-scram"),
        (StartOptions(dev=True, set=["zookeeper.connect=z:1"]), "excludes zookeeper.connect"),
        (StartOptions(dev=True, data_dir="a,b"), "excludes several directories"),
        (
            StartOptions(
                dev=True, set=["listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=SCRAM-SHA-512"]
            ),
            "excludes the listener SASL_PLAINTEXT://127.0.0.1:0",
        ),
        (
            StartOptions(
                dev=True,
                set=["authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"],
            ),
            "excludes authorizer.class.name",
        ),
    ],
)
def test_it_is_for_tests_only(options: StartOptions, error: str) -> None:
    with pytest.raises(CliError, match=re.escape(error)) as raised:
        run_dev(options, load_properties(options, {})[0])
    assert raised.value.status == 2
