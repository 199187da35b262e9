"""The console's records: pages, searches, export, one record, and producing."""

import base64
import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

from kbroker.client.producer import BlockingProducer
from kbroker.console.pages.record import hex_rows, indented_json, show
from kbroker.console.pages.records import short
from kbroker.testing import Broker
from tests.unit.console.browser import Browser, browse

SCRIPT = b"<script>alert(1)</script>"


def link(page: str, id: str) -> str:
    """Return where a link of the page leads."""
    found = re.search(rf'id="{id}"[^>]*href="([^"]*)"', page)
    assert found is not None
    return unescape(found[1])


def offsets(page: str) -> list[str]:
    return re.findall(r">(\d+:\d+)</a>", page)


def test_pages_go_on_where_the_last_one_ended(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"%d" % number for number in range(25)])
    for start in ("newest", "earliest"):
        seen: list[str] = []
        url = f"/topics/{topic}/records?from={start}&limit=10"
        for _ in range(3):
            page = browser.open(url)
            seen += offsets(page)
            url = link(page, "next")
        assert len(seen) == len(set(seen)) == 25
        assert "all is read" in page


def test_a_search_in_steps_finds_what_matches(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=1)
    kafka.produce(topic, [(b"k%d" % (n % 3), b'{"n": %d}' % n, [("h", b"%d" % (n % 2))]) for n in range(30)])
    query = {"from": "earliest", "key": "k0", "header": "h=1", "json": "$.n != 9", "text": "n", "limit": "3"}
    step = json.loads(browser.open(f"/topics/{topic}/records/step?{urlencode(query)}"))
    assert (offsets(step["rows"]), step["found"], step["at"], step["is_done"]) == (
        ["0:3", "0:15", "0:21"],
        3,
        "0:22",
        False,
    )
    step = json.loads(browser.open(f"/topics/{topic}/records/step?{urlencode({**query, 'at': step['at']})}"))
    assert (offsets(step["rows"]), step["remaining"], step["is_done"]) == (["0:27"], 0, True)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("from=yesterday", "expected earliest, latest, an offset, -N or @TIME, not 'yesterday'"),
        ("from=@yesterday", "expected a time such as"),
        ("partition=7", "has no partition 7"),
        ("partition=x", "must be a whole number"),
        ("json=$", "expected a JSON path"),
        ("at=1", "expected positions such as"),
        ("limit=1000000", "limit must be a number from 0 to 500"),
        ("max=x", ""),
    ],
)
def test_a_wrong_search_is_refused_with_a_sentence(kafka: Broker, browser: Browser, query: str, error: str) -> None:
    topic = kafka.topic(partitions=1)
    page = "export" if query.startswith("max") else "records"
    shown = unescape(browser.open(f"/topics/{topic}/{page}?{query}", 400))
    assert error in shown
    assert "Traceback" not in shown


def test_export_has_all_records_as_json_lines(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [(b"k%d" % number, b"\xff%d" % number) for number in range(1200)])
    response = browser.client.get(f"/topics/{topic}/export?from=earliest")
    assert response.headers["Content-Disposition"] == f'attachment; filename="{topic}.jsonl"'
    lines = [json.loads(line) for line in response.text.splitlines()]
    values = {base64.b64decode(line["value_base64"]) for line in lines}
    assert values == {b"\xff%d" % number for number in range(1200)}
    for most in (7, 700):
        assert len(browser.client.get(f"/topics/{topic}/export?from=earliest&max={most}").text.splitlines()) == most
    assert len(browser.client.get(f"/topics/{topic}/export?key=k7&max=700").text.splitlines()) == 1


@pytest.mark.parametrize(
    ("query", "of_kbroker", "of_kcat"),
    [
        ("", "--from=-50 --json", "-o -50 -e -J"),
        ("key=k", "--from=earliest --json", "-o beginning -e -J"),
        ("from=earliest&partition=1", "--partition 1 --from=earliest --json", "-p 1 -o beginning -e -J"),
        ("from=@1000", "--from=@1000 --json", "-o s@1000 -e -J"),
        ("from=12", "--from=12 --json", "-o 12 -e -J"),
    ],
)
def test_the_commands_of_a_search(kafka: Broker, browser: Browser, query: str, of_kbroker: str, of_kcat: str) -> None:
    topic = kafka.topic(partitions=2)
    shown = unescape(browser.open(f"/topics/{topic}/records?{query}"))
    assert f"kbroker consume {topic} -b {kafka.bootstrap} {of_kbroker}<" in shown
    assert f"kcat -C -b {kafka.bootstrap} -t {topic} {of_kcat}<" in shown


def test_one_record(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=1)
    value = b'{"id": 12345678901234567890, "price": 1.10, "html": "%s"}' % SCRIPT
    kafka.produce(
        topic, [(SCRIPT, value, [(SCRIPT.decode(), SCRIPT)]), (b"k", None), (b"\x00", b"\x00\x00\x00\x00\x09abc")]
    )
    page = browser.open(f"/topics/{topic}/0/0")
    assert SCRIPT.decode() not in page
    assert '"id": 12345678901234567890,\n  "price": 1.10,' in unescape(page)
    assert f"kbroker consume {topic} -b {kafka.bootstrap} --partition 0 --from=0 --count 1 --json" in page
    assert f"kcat -C -b {kafka.bootstrap} -t {topic} -p 0 -o 0 -c 1 -e -J" in page
    assert "7b 22 69 64" in browser.open(f"/topics/{topic}/0/0?as=hex")
    assert "The value is null" in browser.open(f"/topics/{topic}/0/1")
    assert "schema id 9" in browser.open(f"/topics/{topic}/0/2")
    download = browser.client.get(f"/topics/{topic}/0/0/value")
    assert (download.content, download.headers["Content-Type"]) == (value, "application/octet-stream")
    assert download.headers["Content-Disposition"].startswith("attachment")
    browser.open(f"/topics/{topic}/0/1/value", 404)
    assert "There is none after it" in browser.open(f"/topics/{topic}/0/3", 404)
    assert "has no partition 1" in browser.open(f"/topics/{topic}/1/0", 400)
    browser.open(f"/topics/{topic}/0/{10**30}", 400)


def test_records_are_produced(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=3)
    produce = f"/topics/{topic}/produce"
    key = base64.b64encode(b"\xff").decode()
    for form in (
        {"key": "k", "value": "v=1&é", "headers": "a=1\nb=2=3\n", "partition": "2"},
        {"key_base64": key, "tombstone": "yes", "partition": "1"},
        {},
    ):
        assert "Produced." in browser.client.post(produce, data=form).text
    found = {(record.key, record.value, tuple(record.headers)) for record in kafka.consume(topic, n=3)}
    headers = (("a", b"1"), ("b", b"2=3"))
    assert found == {(b"k", "v=1&é".encode(), headers), (b"\xff", None, ()), (None, b"", ())}
    for form, error in (
        ({"tombstone": "yes"}, "needs a key"),
        ({"tombstone": "yes", "key": "k", "value": "v"}, "has no value"),
        ({"value": "v", "partition": "9"}, "partition"),
        ({"value": "v", "headers": "a"}, "NAME=VALUE"),
        ({"key_base64": "?"}, "not base64"),
    ):
        refused = browser.client.post(produce, data=form)
        assert (refused.status_code, error in refused.text) == (400, True)
    assert browser.client.post("/topics/nowhere/produce", data={"value": "v"}).status_code == 404
    with browse(kafka.bootstrap, allows_writes=False) as reader:
        assert "read-only" in reader.open(produce)
        assert reader.client.post(produce, data={"value": "v"}).status_code == 403


def test_a_search_passes_a_leader_that_is_away(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=1)
    with kafka.client() as cluster:
        producer = BlockingProducer(cluster)
        producer.add(topic, None, b"v", [], 0, None)
        producer.flush()
    with kafka.fault(api="Fetch", topic=topic, error="NOT_LEADER_OR_FOLLOWER", count=2) as fault:
        assert offsets(browser.open(f"/topics/{topic}/records")) == ["0:0"]
    assert fault.hits == 2


def test_json_is_indented_without_a_change() -> None:
    text = '{"a":[1,2.50,{"b\\"":"x, {y}:[]"}],"e":{},"f":[],"g":[[]],"n":1e5}'
    indented = indented_json(text.encode())
    assert indented is not None
    assert json.loads(indented) == json.loads(text)
    assert re.sub(r"\n *|(?<=:) ", "", indented) == text
    assert [indented_json(data) for data in (b"1", b'"x"', b"{", b"\xff", b"[" * 100_000)] == [None] * 5


def test_bytes_are_shown_as_what_they_are() -> None:
    assert (show(b"a\tb\nc").text, show(b"a\tb\nc").format) == ("a\tb\nc", "text")
    assert show("\u202e\x1b[2J".encode()).text == "\\u202e\\x1b[2J"
    assert (show(b"\xff").format, show(b"\xff", "text").text) == ("hex", "\\xff")
    assert (show(None).text, show(b"").text) == (None, "")
    large = show("é".encode() * (1 << 20))
    assert (large.format, large.is_cut, large.size) == ("text", True, 2 << 20)
    assert list(hex_rows(b"0123456789abcdef\n")) == [
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef",
        "00000010  0a                                               .",
    ]
    assert short("aé".encode(), 2) == "a…"
    assert short(b"\xff" * 5, 2) == "\\xff\\xff…"
