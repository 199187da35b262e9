"""No form changes the cluster without --write, or for another site."""

from collections.abc import Iterator

import pytest
from starlette.routing import Route

from kbroker.console.app import PAGES
from kbroker.testing import Broker
from tests.unit.console.browser import Browser, browse

FORMS = [
    route.path for module in PAGES for route in module.routes if isinstance(route, Route) and "POST" in route.methods
]
OTHERS = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:81"},
    {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
    {"origin": "http://localhost", "sec-fetch-site": "same-site"},
)


@pytest.fixture
def reader(kafka: Broker) -> Iterator[Browser]:
    with browse(kafka.bootstrap, allows_writes=False) as opened:
        yield opened


def test_all_forms_are_known() -> None:
    assert {"/groups/reset", "/configs/alter", "/transactions/abort", "/queues/dead-letters/redrive"} <= set(FORMS)


def sent(kafka: Broker) -> int:
    return len(kafka.requests(client_id="kbroker-console"))


@pytest.mark.parametrize("path", FORMS)
def test_forms_need_write(kafka: Broker, reader: Browser, path: str) -> None:
    response = reader.client.post(path, data={"confirmed": "yes"})
    assert response.status_code == 403
    assert "read-only: start it with --write" in response.text
    assert sent(kafka) == 0


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("headers", OTHERS, ids=lambda headers: " ".join(headers.values()))
def test_forms_of_other_sites_are_refused(kafka: Broker, browser: Browser, path: str, headers: dict[str, str]) -> None:
    response = browser.client.post(path, data={"confirmed": "yes"}, headers=headers)
    assert response.status_code == 403
    assert sent(kafka) == 0


def test_pages_of_a_reader_have_no_forms_that_change(kafka: Broker, reader: Browser) -> None:
    topic = kafka.topic(config={"kbroker.delay.enable": True})
    kafka.produce(topic, [(b"k", b"v", [("TIMER_DELAY_SEC", b"600")])])
    paths = [
        f"/configs/one?kind=topic&name={topic}", f"/queues/delayed?topic={topic}&key=k", "/transactions/hanging",
        f"/queues/dead-letters?topic={topic}", "/transactions", "/brokers", "/groups", "/queues",
    ]  # fmt: skip
    for path in paths:
        assert 'method="post"' not in reader.open(path)
