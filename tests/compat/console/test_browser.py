"""The console in a headless Chromium: every view, light and dark, wide and narrow, with hostile records.

`pytest tests/compat/console --screenshots` writes the pictures of docs/console.md.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kbroker.cli.common.client import parse_bootstrap
from kbroker.client.cluster import ClusterClient
from kbroker.client.groups import commit_offsets, committed_offsets
from kbroker.client.transactions import LAST_VERSIONS, BlockingTransactionalProducer
from kbroker.testing import Broker
from protocol.messages.k76_share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

DOCS = Path(__file__).parents[3] / "docs"
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = {"width": 1280, "height": 720}, {"width": 390, "height": 844}

# Pictures of those that docs/console.md shows are in docs/images.
VIEWS = {
    "topics": "/topics",
    "topic": "/topics/orders",
    "records": "/topics/orders/records?from=earliest&json=%24.status+%3D+paid&limit=10",
    "tail": "/topics/orders/tail",
    "record": "/topics/orders/0/0",
    "produce": "/topics/orders/produce",
    "groups": "/groups",
    "group": "/groups/one?id=billing",
    "configs": "/configs",
    "config": "/configs/one?kind=topic&name=orders",
    "brokers": "/brokers",
    "findings": "/brokers/findings",
    "queues": "/queues",
    "delayed": "/queues/delayed?topic=reminders",
    "dead-letters": "/queues/dead-letters?topic=dlq.orders",
    "transactions": "/transactions",
    "hanging": "/transactions/hanging",
}
# Each is the key, the value and a header of a record.
HOSTILE = {
    "html": b"<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">",
    "attribute": b'"\'><a href="javascript:document.title=\'owned\'" style="position:fixed;inset:0">',
    "template": b"{{ 7 * 7 }}{% for x in y %}${7*7}",
    "binary": bytes(range(256)),
    "invalid UTF-8": b"\xff\xfe\xc3(\xed\xa0\x80",
    "right to left": "abc \u202e\u2066 gpj.exe \u05d0".encode(),
    "combining": ("Z" + "\u0351" * 200).encode(),
    "long word": b"w" * 20_000,
    "large": b'{"a": "' + b"<b>" * 250_000 + b'"}',
    "deep": b"[" * 100_000,
    "terminal": b"\x1b]0;owned\x07\x1b[2J",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Any]:
    with Broker() as broker:
        broker.topic("orders", partitions=3, config={"retention.ms": 7 * 86_400_000, "segment.bytes": 64 << 20})
        statuses = ("new", "paid", "sent")
        broker.produce(
            "orders",
            [
                (
                    f"customer-{number % 7}".encode(),
                    json.dumps({"id": number, "status": statuses[number % 3], "total": 9.5 + number}).encode(),
                    [("source", b"shop")],
                )
                for number in range(40)
            ],
        )
        broker.topic("payments", partitions=2, config={"cleanup.policy": "compact"})
        broker.produce("payments", [(b"order-1", b"9.50"), (b"order-2", None)])
        broker.topic("hostile", partitions=1)
        broker.produce("hostile", [(data[:1000], data, [(name, data[:1000])]) for name, data in HOSTILE.items()])
        with broker.client() as client:
            commit_offsets(client, "billing", {("orders", 0): 2, ("orders", 1): 0, ("orders", 2): 5})
            commit_offsets(client, "shipping", {("orders", 0): 4})
        make_queues(broker)
        with ClusterClient(parse_bootstrap(broker.bootstrap), client_id="test", max_versions=LAST_VERSIONS) as client:
            open_transaction(client)
        yield broker


def make_queues(broker: Any) -> None:
    """Create delayed records, dead letters, a view and a share group."""
    broker.topic("reminders", partitions=2, config={"kbroker.delay.enable": True})
    delays = {b"account-7": b"600", b"account-8": b"90", b"account-9": b"86400"}
    broker.produce("reminders", [(key, b"call back", [("TIMER_DELAY_SEC", delay)]) for key, delay in delays.items()])
    broker.topic(
        "orders.paid", partitions=-1, config={"kbroker.view.of": "orders", "kbroker.view.filter": "paid || refunded"}
    )
    broker.topic("dlq.orders", config={"errors.deadletterqueue.group.enable": True})
    for number, (error, message) in enumerate([("TimeoutError", "no answer within 30 s"), ("KeyError", "'total'")] * 2):
        headers = {
            "__dlq.errors.topic": "orders", "__dlq.errors.partition": "0", "__dlq.errors.offset": str(number),
            "__dlq.errors.group": "billing", "__dlq.errors.delivery.count": "4", "__dlq.errors.message": message,
            "kafka_dlt-exception-fqcn": error,
        }  # fmt: skip
        named = [(name, value.encode()) for name, value in headers.items()]
        broker.produce("dlq.orders", [(b"customer-1", b'{"id": %d}' % number, named)])
    with broker.client() as client:
        joining = ShareGroupHeartbeatRequest(
            group_id="packing", member_id="packer-1", member_epoch=0, subscribed_topic_names=["orders"]
        )
        client.coordinated("packing", joining, ShareGroupHeartbeatResponse, lambda found: found.error_code)


def open_transaction(client: ClusterClient) -> None:
    BlockingTransactionalProducer(client, "billing-0")
    producer = BlockingTransactionalProducer(client, "billing-1")
    producer.init_producer_id(transaction_timeout_ms=600_000)
    producer.add("payments", b"order-3", b"12.00", ())
    producer.flush()


@pytest.fixture(scope="module")
def console(kafka: Any) -> Iterator[str]:
    """The URL of `kbroker console --write`."""
    command = [sys.executable, "-m", "kbroker", "console", "-b", kafka.bootstrap, "--listen", "127.0.0.1:0", "--write"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip().rstrip("/")
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip(f"not run: none of {', '.join(CHROMIUM)} is installed")
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser, console: str) -> Iterator[Page]:
    """A tab that fails the test for errors of scripts and of the policy, and for requests to other hosts."""
    context = browser.new_context(base_url=console, viewport=WIDE)
    context.set_default_timeout(20_000)
    tab = context.new_page()
    troubles: list[str] = []
    tab.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith(console) else troubles.append(request.url))
    tab.on("response", lambda response: None if response.status < 400 else troubles.append(response.url))
    yield tab
    context.close()
    assert troubles == []


def is_dark(tab: Page) -> bool:
    red, green, blue = tab.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    return bool(red + green + blue < 3 * 64)


def overflow(tab: Page) -> int:
    """Return by how many pixels a page is wider than the window."""
    return int(tab.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.mark.parametrize("view", VIEWS)
def test_views(tab: Page, kafka: Any, view: str, request: pytest.FixtureRequest) -> None:
    tab.goto(VIEWS[view])
    expect(tab.locator("main")).to_be_visible()
    assert not is_dark(tab)
    tab.emulate_media(color_scheme="dark")
    assert is_dark(tab)
    tab.set_viewport_size(NARROW)
    assert overflow(tab) <= 0
    is_shown = f"images/console-{view}.png" in (DOCS / "console.md").read_text()
    if is_shown and request.config.getoption("--screenshots", default=False):
        tab.emulate_media(color_scheme="light")
        tab.set_viewport_size(WIDE)
        take_picture(tab, kafka, view)


def take_picture(tab: Page, kafka: Any, view: str) -> None:
    """Write a picture with few colors, which makes it small."""
    from PIL import Image

    if view == "topics":
        expect(tab.locator("#topics")).to_contain_text("/s")
    if view == "group":
        expect(tab.locator("polyline")).to_have_count(1)
        kafka.produce("orders", [(None, b"{}")] * 30)
        expect(tab.locator("figcaption")).to_contain_text("at most 63")
    picture = Image.open(BytesIO(tab.screenshot())).convert("RGB").quantize(64)
    picture.save(DOCS / "images" / f"console-{view}.png", optimize=True)


def test_hostile_records(tab: Page) -> None:
    tab.goto("/topics/hostile/records?from=earliest")
    expect(tab.locator("#rows tr")).to_have_count(len(HOSTILE))
    assert (
        tab.locator("#rows script, #rows img, #rows [style], #rows [onerror], #rows a[href^=javascript]").count() == 0
    )
    links = [link.get_attribute("href") for link in tab.locator("#rows a").all()]
    assert overflow(tab) <= 0
    for link in links:
        for format in ("", "?as=json", "?as=text", "?as=hex"):
            tab.goto(f"{link}{format}")
            assert tab.locator("#value *").count() == 0
            assert "owned" not in tab.title()
            # No character of a record may change the order of what is around it.
            assert not set(tab.locator("main").inner_text()) & set("\u202e\u2066\u2067\u2068\x1b")
    tab.set_viewport_size(NARROW)
    for link in links:
        tab.goto(str(link))
        assert overflow(tab) <= 0, link


def test_a_search_goes_on_until_it_has_found_enough(tab: Page, kafka: Any) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [(None, b'{"n": %d}' % number) for number in range(30_000)])
    tab.goto(f"/topics/{topic}/records?from=earliest&json=%24.n+%3D+29999")
    expect(tab.locator("#status")).to_contain_text("1 found in 30,000 records")
    expect(tab.locator("#rows tr")).to_have_count(1)
    expect(tab.locator("#next")).to_be_hidden()
    # Cancelled, it goes on from there.
    tab.goto("about:blank")
    tab.route("**/records/step*", lambda route: None)
    tab.goto(f"/topics/{topic}/records?from=earliest&json=%24.n+%3D+-1")
    tab.locator("#cancel").click()
    expect(tab.locator("#status")).to_contain_text("cancelled")
    tab.unroute("**/records/step*")
    tab.locator("#next").click()
    expect(tab.locator("#status")).to_contain_text("all is read")


def test_the_tail_shows_new_records_until_it_is_paused(tab: Page, kafka: Any) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [(None, b"before")])
    tab.goto(f"/topics/{topic}/tail")
    kafka.produce(topic, [(b"k", b"first")])
    expect(tab.locator("#rows tr")).to_have_count(1)
    expect(tab.locator("#rows")).to_contain_text("first")
    tab.locator("#pause").click()
    kafka.produce(topic, [(b"k", b"second")])
    expect(tab.locator("#pause")).to_have_text("Go on")
    tab.locator("#pause").click()
    expect(tab.locator("#rows tr").first).to_contain_text("second")


def test_records_are_produced_and_deleted_by_a_tombstone(tab: Page, kafka: Any) -> None:
    topic = kafka.topic(partitions=1)
    tab.goto(f"/topics/{topic}/produce")
    for field, text in {"key": "k", "value": "<b>v</b>", "headers": "a=1\nb=2"}.items():
        tab.locator(f"[name={field}]").fill(text)
    tab.get_by_role("button", name="Produce").click()
    expect(tab.get_by_role("status")).to_contain_text("Produced")
    tab.goto(f"/topics/{topic}/0/0")
    tab.get_by_role("link", name="Tombstone").click()
    tab.get_by_role("button", name="Produce").click()
    expect(tab.get_by_role("status")).to_contain_text("Produced")
    [first, second] = kafka.consume(topic, n=2)
    assert (first.key, first.value, list(first.headers)) == (b"k", b"<b>v</b>", [("a", b"1"), ("b", b"2")])
    assert (second.key, second.value) == (b"k", None)


def test_offsets_are_reset_after_a_preview(tab: Page, kafka: Any) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"v"] * 10)
    with kafka.client() as client:
        commit_offsets(client, topic, {(topic, 0): 3, (topic, 1): 4})
    tab.goto(f"/groups/one?id={topic}")
    tab.locator("[name=target]").select_option("shift")
    tab.locator("[name=value]").fill("-2")
    tab.get_by_role("button", name="Preview").click()
    expect(tab.locator("#preview tbody tr")).to_have_count(2)
    with kafka.client() as client:
        assert sorted(committed_offsets(client, topic).values()) == [3, 4]
    tab.get_by_role("button", name="Commit these offsets").click()
    tab.wait_for_url("**/groups/one?id=*")
    with kafka.client() as client:
        assert sorted(committed_offsets(client, topic).values()) == [1, 2]


def test_dead_letters_are_redriven(tab: Page, kafka: Any) -> None:
    topic = kafka.topic()
    tab.goto("/queues/dead-letters?topic=dlq.orders")
    tab.locator("[name=to]").fill(topic)
    tab.get_by_role("button", name="Preview a redrive").click()
    tab.get_by_role("button", name="Redrive 4 records").click()
    expect(tab.locator("#redrive")).to_contain_text(f"4 sent to {topic}")
    assert len(kafka.consume(topic, n=4, read_committed=True)) == 4


def test_keyboard_and_theme(tab: Page) -> None:
    tab.goto("/topics")
    tab.keyboard.press("/")
    tab.keyboard.type("pay")
    expect(tab.locator("#topics tbody tr:visible")).to_have_count(1)
    tab.keyboard.press("Escape")
    tab.keyboard.press("?")
    expect(tab.locator("#shortcuts")).to_be_visible()
    tab.keyboard.press("Escape")
    tab.keyboard.press("d")
    assert is_dark(tab)
    tab.keyboard.press("g")
    tab.keyboard.press("g")
    tab.wait_for_url("**/groups")
    # The theme stays.
    assert is_dark(tab)
