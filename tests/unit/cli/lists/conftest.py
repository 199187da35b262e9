"""A broker with topics, groups, ACLs, users and quotas, and a command line that asks it."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kbroker.cli import main
from kbroker.client.requests import TRANSACTION
from kbroker.testing import Broker
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse

CONFIGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
SETUP = (
    "topics create orders --partitions 2 --config retention.ms=86400000",
    "topics create reminders --partitions 1 --config kbroker.delay.enable=true",
    "topics create dead --partitions 1 --config errors.deadletterqueue.group.enable=true",
    "topics create paid --view-of orders --filter paid",
    "retry create orders --group billing",
    "groups reset-offsets billing --topic orders --to-latest --execute",
    "acls add --topic orders --allow User:alice --producer",
    "quotas set producer_byte_rate=10MiB --user alice",
    "quotas set request_percentage=50 --default client-id",
    "users set alice",
)


class Outcome(NamedTuple):
    """What a command has printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture(scope="package")
def bootstrap() -> Iterator[str]:
    with Broker(CONFIGS) as broker:
        with broker.client() as client:
            request = InitProducerIdRequest(transactional_id="mover", transaction_timeout_ms=60_000)
            client.coordinated(
                "mover", request, InitProducerIdResponse, lambda response: response.error_code, TRANSACTION
            )
        yield broker.bootstrap


@pytest.fixture
def run(bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line, given as one text or as words, and asks the broker unless it names another."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", bootstrap)

    def run(*words: str) -> Outcome:
        monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
        capsys.readouterr()
        status = main(words[0].split() if len(words) == 1 else words)
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def filled(run: Run, bootstrap: str) -> Run:
    """The same, after SETUP, which is done once."""
    if run("topics describe orders").status:
        for line in SETUP:
            outcome = run(line)
            assert outcome.status == 0, (line, outcome.err)
        for words in (("orders", "a", "b", "c"), ("reminders", "later", "never", "--header", "TIMER_DELAY_SEC=3600")):
            assert run("produce", *words).status == 0
    return run
