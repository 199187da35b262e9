"""`kbroker configs list` while a broker is away."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cli import main
from kbroker.cli.configs import app, requests

Capture = pytest.CaptureFixture[str]
DYNAMIC_BROKER_CONFIG = 2


class FakeClient:
    """Brokers 1, 2 and 3, of which only 1 and 3 respond."""

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": broker, "is_fenced": broker == 2} for broker in (3, 1, 2)]}


def described(name: str) -> Any:
    config = SimpleNamespace(
        name="log.cleaner.threads", value="2", config_source=DYNAMIC_BROKER_CONFIG, config_type=3, is_sensitive=False,
        read_only=False, synonyms=[], documentation=None,
    )  # fmt: skip
    result = SimpleNamespace(
        resource_type=4, resource_name=name, error_code=0, error_message=None, configs=[config] if name else []
    )
    return SimpleNamespace(results=[result])


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def admin_client(bootstrap: str) -> Iterator[Any]:
        yield FakeClient()

    def send_to_brokers(client: Any, sent: Sequence[tuple[int, Any]], timeout_ms: int) -> list[tuple[int, Any]]:
        return [(broker, described(str(broker))) for broker, _ in sent if broker != 2]

    monkeypatch.setattr(app, "admin_client", admin_client)
    monkeypatch.setattr(requests, "send_to_brokers", send_to_brokers)
    monkeypatch.setattr(requests, "send_request", lambda *_: described(""))


def test_brokers_that_respond_are_listed(capsys: Capture) -> None:
    assert main(["configs", "list", "brokers"]) == 1
    output = capsys.readouterr()
    assert [row.split() for row in output.out.splitlines()] == [
        ["KIND", "NAME", "CONFIG", "VALUE"],
        ["broker", "1", "log.cleaner.threads", "2"],
        ["broker", "3", "log.cleaner.threads", "2"],
    ]
    assert output.err == "kbroker: broker 2 does not respond: what is set for it is not listed\n"


def test_as_json(capsys: Capture) -> None:
    assert main(["configs", "list", "brokers", "--json"]) == 1
    assert [row["resource"] for row in json.loads(capsys.readouterr().out)] == ["1", "3"]
