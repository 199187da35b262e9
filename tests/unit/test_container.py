"""The container image: the options of a container, and its health check. Building it needs Docker; this does not."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kbroker.cli.start.options import load_properties, parse_options

DOCKER = Path(__file__).parents[2] / "docker"


def properties_of(*options: str) -> dict[str, str]:
    """Return the properties of the broker in a container that is run with these options."""
    text = (DOCKER / "Dockerfile").read_text()
    environment = dict(re.findall(r"^ENV (KBROKER_\w+)=(\S+)$", text, re.MULTILINE))
    found = re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    assert found is not None
    program, command, *args = json.loads(found[1])
    assert (program, command) == ("kbroker", "start")
    assert "\nCMD" not in text, "the options of a container replace it"
    parsed = parse_options([*args, *options])
    assert parsed is not None
    properties, warnings = load_properties(parsed, environment)
    assert warnings == []
    return {name: config.text for name, config in properties.items()}


def test_options_of_a_container_leave_the_advertised_address() -> None:
    properties = properties_of("--set", "num.partitions=3")
    assert properties["advertised.listeners"] == "PLAINTEXT://localhost:9092"
    assert properties["listeners"] == "PLAINTEXT://0.0.0.0:9092"
    assert properties["kbroker.metrics.listener"] == "0.0.0.0:9308"
    assert properties["num.partitions"] == "3"


def test_an_address_of_a_container_replaces_that_of_the_image() -> None:
    options = [
        "--advertise",
        "kbroker:9092",
        "--listen",
        "HOST://0.0.0.0:19092",
        "--advertise",
        "HOST://localhost:19092",
    ]
    properties = properties_of(*options)
    assert properties["advertised.listeners"] == "PLAINTEXT://kbroker:9092,HOST://localhost:19092"
    assert properties["listeners"] == "PLAINTEXT://0.0.0.0:9092,HOST://0.0.0.0:19092"


def test_a_container_for_tests_has_the_options_of_the_documentation() -> None:
    page = (DOCKER.parent / "docs" / "testing.md").read_text()
    found = re.search(r"^\$ docker run .* kbroker \\\n    (--dev .*)$", page, re.MULTILINE)
    assert found is not None
    options = parse_options(found[1].split())
    assert options is not None
    assert (options.dev, options.control, options.control_insecure_host) == (True, "0.0.0.0:9080", ["localhost"])
    properties = properties_of(*found[1].split())
    assert properties["log.dirs"] == "/data"
    assert properties["advertised.listeners"] == "PLAINTEXT://localhost:9092"


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        assert self.path == "/healthz"
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a metrics listener, whose status is that of Health."""
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def is_healthy(metrics: str, *options: str) -> bool:
    """Run the health check for a process with these options."""
    program, pipe = "print(flush=True); input()", subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, *options], stdin=pipe, stdout=pipe) as broker:
        assert broker.stdout is not None
        # Only then does the kernel show its command line for certain.
        broker.stdout.readline()
        done = subprocess.run(
            [DOCKER / "healthcheck", str(broker.pid)],
            env=os.environ | {"KBROKER_METRICS_LISTENER": metrics}, capture_output=True, text=True,
        )  # fmt: skip
        broker.communicate(b"\n")
    return done.returncode == 0


def test_the_health_check_knows_the_port_and_the_status(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_healthy(f"0.0.0.0:{port}")
    assert is_healthy("0.0.0.0:1", "--metrics", f"0.0.0.0:{port}")
    assert is_healthy("0.0.0.0:1", f"--metrics=127.0.0.1:{port}")
    assert not is_healthy("0.0.0.0:1")
    monkeypatch.setattr(Health, "status", 503)
    assert not is_healthy(f"0.0.0.0:{port}")
