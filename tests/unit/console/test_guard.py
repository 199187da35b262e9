"""Which requests reach a page."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

from kbroker.console.app import create_app
from kbroker.console.settings import ConsoleSettings

# Nothing listens there: the pages of these tests need no cluster.
NOWHERE = [("127.0.0.1", 1)]
URL = "http://127.0.0.1:8080"
PAGE, FORM = "/no-such-page", "/topics/t/produce"
TOKEN = "0123456789abcdef"


@contextmanager
def client(url: str = URL, **settings: object) -> Iterator[TestClient]:
    with TestClient(create_app(ConsoleSettings(NOWHERE, **settings)), base_url=url) as opened:  # type: ignore[arg-type]
        yield opened


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 404),
        ("localhost:8080", 404),
        ("[::1]:8080", 404),
        ("console.example", 404),
        ("CONSOLE.example:8080", 404),
        ("evil.example:8080", 421),
        ("192.0.2.1:8080", 404),
        ("127.0.0.1.evil.example", 421),
        ("evil.example@127.0.0.1", 404),  # a user name: the host is 127.0.0.1
        ("127.0.0.1@evil.example", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_only_known_hosts_are_served(host: str, status: int) -> None:
    with client(hosts=frozenset({"Console.example"})) as browser:
        assert browser.get(PAGE, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:8081"},
        {"Origin": "http://127.0.0.1:8080.evil.example"},
        {"Origin": URL, "Sec-Fetch-Site": "cross-site"},
        {"Origin": URL, "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_forms_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    with client(allows_writes=True) as browser:
        refused = browser.post(FORM, headers=headers)
        assert (refused.status_code, refused.text) == (403, "Requests of other sites are refused.\n")


def test_forms_need_write() -> None:
    for allows_writes, status in ((False, 403), (True, 400)):
        with client(allows_writes=allows_writes) as browser:
            # With a tombstone without a key, nothing is sent to the cluster.
            form = {"tombstone": "yes"}
            assert browser.post(FORM, data=form, headers={"Origin": URL}).status_code == status
            assert browser.put(FORM, headers={"Origin": URL}).status_code == (405 if allows_writes else 403)


def test_other_sites_can_link_to_pages_but_not_embed_them() -> None:
    with client() as browser:
        cross = {"Sec-Fetch-Site": "cross-site"}
        assert browser.get(PAGE, headers={**cross, "Sec-Fetch-Mode": "navigate"}).status_code == 404
        assert browser.get(PAGE, headers={**cross, "Sec-Fetch-Mode": "no-cors"}).status_code == 403


def test_a_token_is_needed_until_the_url_has_set_the_cookie() -> None:
    with client(token=TOKEN) as browser:
        for path in (PAGE, f"{PAGE}?token=wrong", f"{PAGE}?token=", "/static/console.js"):
            assert browser.get(path).status_code == 401
        assert browser.get(PAGE, headers={"Cookie": 'kbroker-console-8080="'}).status_code == 401
        redirect = browser.get(f"{URL}//evil.example/?token={TOKEN}&a=1", follow_redirects=False)
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/evil.example/?a=1")
        cookie = redirect.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert browser.get(PAGE).status_code == 404


def test_every_response_has_the_headers_of_security() -> None:
    with client() as browser:
        pages = [browser.get(path) for path in ("/", PAGE, "/static/console.css", "/static/../app.py")]
        for response in [*pages, browser.get(PAGE, headers={"Host": "evil.example"}), browser.post(FORM)]:
            assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert [each.headers["Cache-Control"] for each in pages] == ["no-store", "no-store", "no-cache", "no-store"]


def test_a_large_form_is_refused_before_it_is_read() -> None:
    with client(allows_writes=True) as browser:
        response = browser.post(FORM, content=b"value=" + b"x" * (5 << 20), headers={"Origin": URL})
        assert response.status_code == 400
        assert "at most 4.0 MiB" in response.text


def test_a_page_says_that_the_cluster_is_away_and_is_loaded_again() -> None:
    with client() as browser:
        page = browser.get("/topics")
        assert page.status_code == 502
        assert "cannot connect to 127.0.0.1:1: Connection refused" in page.text
        assert 'data-refresh="3"' in page.text
        # A script gets the sentence alone.
        step = browser.get("/topics/t/records/step", headers={"Accept": "application/json"})
        assert step.text == "cannot connect to 127.0.0.1:1: Connection refused"
