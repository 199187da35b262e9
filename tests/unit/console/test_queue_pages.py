"""The console's queues: delayed records, dead letters with redrives, views, share groups."""

from collections.abc import Sequence
from time import monotonic, sleep
from urllib.parse import urlencode

import pytest

from kbroker.client.groups import committed_offsets
from kbroker.testing import Broker
from protocol.messages.k76_share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.unit.console.browser import Browser, hidden_fields, rows

DLQ = {"errors.deadletterqueue.group.enable": True}
DELAYED = {"kbroker.delay.enable": True}
CHANGE, REDRIVE = "/queues/delayed/change", "/queues/dead-letters/redrive"


def delay(kafka: Broker, topic: str, keys: Sequence[bytes]) -> None:
    kafka.produce(topic, [(key, b"<later> " + key, [("TIMER_DELAY_SEC", b"600")]) for key in keys])


def letters(kafka: Broker, topic: str, source: str, groups: Sequence[bytes], value: bytes = b"v") -> None:
    headers = [("__dlq.errors.topic", source.encode()), ("__dlq.errors.message", b"<img src=x>")]
    kafka.produce(topic, [(b"k", value, [*headers, ("__dlq.errors.group", group)]) for group in groups])


def test_a_cluster_without_queues_says_so(browser: Browser) -> None:
    page = browser.open("/queues")
    for text in ("No topic has delayed", "No topic is for dead letters", "No topic is a view", "No group is a share"):
        assert text in page


def test_queues_are_listed(kafka: Broker, browser: Browser) -> None:
    source = kafka.topic()
    view = kafka.topic(config={"kbroker.view.of": source, "kbroker.view.filter": "a || b"})
    dlq, delayed = kafka.topic(config=DLQ), kafka.topic(config=DELAYED)
    retry = kafka.topic(
        config={**DELAYED, "kbroker.retry.topic": source, "kbroker.retry.group": "billing",
                "errors.deadletterqueue.topic.name": dlq}
    )  # fmt: skip
    letters(kafka, dlq, source, [b"billing"] * 3)
    with kafka.client() as cluster:
        joining = ShareGroupHeartbeatRequest(
            group_id="sharing", member_id="m", member_epoch=0, subscribed_topic_names=[source]
        )
        cluster.coordinated("sharing", joining, ShareGroupHeartbeatResponse, lambda found: found.error_code)
    page = browser.open("/queues")
    assert rows(page, "delayed") == [[delayed, "-"], [retry, f"{source} by billing"]]
    assert [dlq, "3"] in rows(page, "letters")
    assert rows(page, "views") == [[view, source, "a || b"]]
    assert [row[:3] for row in rows(page, "shares")] == [["sharing", "Stable", "1"]]
    shared = browser.open("/groups/one?id=sharing")
    assert "Start offsets" in shared
    assert rows(shared, "members")[0][0] == "m"


def test_a_delayed_record_is_cancelled(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(partitions=2, config=DELAYED)
    delay(kafka, topic, [b"a", b"b", b"b"])
    page = browser.open(f"/queues/delayed?topic={topic}")
    assert "3 pending" in page
    assert "<later>" not in page
    assert [row[5] for row in rows(page, "records")] == ["<later> a", "<later> b", "<later> b"]
    place = next(row for row in rows(page, "records") if row[3] == "a")[:2]
    preview = browser.preview(CHANGE, topic=topic, operation="cancel", places=":".join(place))
    assert [row[:2] for row in rows(preview, "preview")] == [place]
    assert "2 pending" in browser.confirm(CHANGE, preview)
    # Somebody else may have been faster.
    again = browser.client.post(CHANGE, data=hidden_fields(preview))
    assert again.status_code == 400
    assert f"{topic}-{place[0]}, offset {place[1]}" in again.text


def test_records_of_a_key_are_delivered(kafka: Broker, browser: Browser) -> None:
    topic = kafka.topic(config=DELAYED)
    delay(kafka, topic, [b"a", b"b", b"b"])
    assert len(rows(browser.open(f"/queues/delayed?topic={topic}&key=b"), "records")) == 2
    preview = browser.preview(CHANGE, topic=topic, operation="deliver", key="b")
    assert "1 pending" in browser.confirm(CHANGE, preview)
    assert [record.value for record in kafka.consume(topic, n=2)] == [b"<later> b"] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operation": "drop"}, "choose what to do"),
        ({"operation": "cancel"}, "choose records, or a key"),
        ({"operation": "cancel", "places": "0:7"}, "choose records, or a key"),
        ({"operation": "cancel", "places": "0"}, "an offset must be a whole number"),
        ({"operation": "cancel", "key": "x", "topic": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"operation": "cancel", "places": "9:0", "confirmed": "yes"}, "has no partition 9: it has 1"),
        ({"operation": "cancel", "places": "9:0"}, "has no partition 9: it has 1"),
    ],
)
def test_wrong_changes_of_delayed_records(
    kafka: Broker, browser: Browser, fields: dict[str, str], message: str
) -> None:
    topic = kafka.topic(config=DELAYED)
    delay(kafka, topic, [b"a"])
    assert message in browser.preview(CHANGE, 400, **{"topic": topic, **fields})
    assert "1 pending" in browser.open(f"/queues/delayed?topic={topic}")


def test_dead_letters_are_selected(kafka: Broker, browser: Browser) -> None:
    source, dlq = kafka.topic(), kafka.topic(partitions=2, config=DLQ)
    letters(kafka, dlq, source, [b"billing", b"shipping", b"billing"], b"\xff<script>" + b"x" * 1000)
    page = browser.open(f"/queues/dead-letters?topic={dlq}")
    assert "<script>x" not in page
    assert "<img" not in page.partition('id="letters"')[2]
    assert len(rows(page, "letters")) == 3
    selected = rows(browser.open(f"/queues/dead-letters?topic={dlq}&group=shipping"), "letters")
    assert [row[3:5] for row in selected] == [[f"{source}-None@None", "shipping"]]
    # Long and binary values are shown in part.
    assert selected[0][9].startswith("\\xff<script>xxx")
    assert len(selected[0][9]) < 250


def ended(browser: Browser, topic: str) -> str:
    """Return the page of dead letters when no redrive runs."""
    deadline = monotonic() + 30
    while True:
        page = browser.open(f"/queues/dead-letters?{urlencode({'topic': topic})}")
        if "records read" not in page:
            return page
        assert monotonic() < deadline
        sleep(0.05)


def test_a_redrive_is_tried_and_then_carried_out(kafka: Broker, browser: Browser) -> None:
    source, dlq = kafka.topic(), kafka.topic(config=DLQ)
    letters(kafka, dlq, source, [b"billing", b"shipping", b"billing"])
    browser.client.post(REDRIVE, data={"topic": dlq, "group": "billing"})
    trial = ended(browser, dlq)
    assert "2 would be sent to the topics where they failed, 1 not selected" in trial
    assert kafka.consume(source) == []
    browser.client.post(REDRIVE, data=hidden_fields(trial))
    assert "2 sent to the topics where they failed, 1 not selected" in ended(browser, dlq)
    assert [record.value for record in kafka.consume(source, read_committed=True)] == [b"v", b"v"]
    # It goes on where it ended.
    browser.client.post(REDRIVE, data={"topic": dlq, "group": "billing"})
    assert "0 would be sent" in ended(browser, dlq)
    browser.client.post(REDRIVE, data={"topic": dlq, "group": "billing", "again": "yes"})
    assert "2 would be sent" in ended(browser, dlq)


def test_a_redrive_is_cancelled(kafka: Broker, browser: Browser) -> None:
    source, dlq = kafka.topic(), kafka.topic(config=DLQ)
    letters(kafka, dlq, source, [b"billing"] * 20)
    fields = {"topic": dlq, "to": source, "rate": "1", "confirmed": "yes"}
    page = browser.client.post(REDRIVE, data=fields).text
    assert 'data-refresh="1"' in page
    refused = browser.client.post(REDRIVE, data=fields)
    assert (refused.status_code, "is running" in refused.text) == (400, True)
    browser.client.post("/queues/dead-letters/cancel", data={"topic": dlq})
    assert "The redrive has ended early: It was cancelled." in ended(browser, dlq)
    sent = len(kafka.consume(source, read_committed=True))
    with kafka.client() as cluster:
        [progress] = [
            committed_offsets(cluster, row[0]) for row in rows(browser.open("/groups"), "groups")
            if row[0].startswith(f"kbroker-redrive-{dlq}")
        ]  # fmt: skip
    assert 0 < sent < 20
    assert list(progress.values()) == [sent]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "is not a dead-letter topic"),
        ({"topic": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"to": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"rate": "fast"}, "rate must be a number"),
    ],
)
def test_a_redrive_that_cannot_begin_says_why(
    kafka: Broker, browser: Browser, fields: dict[str, str], message: str
) -> None:
    topic = kafka.topic(config=DLQ if fields else {})
    fields = {"topic": topic, **fields}
    response = browser.client.post(REDRIVE, data=fields)
    assert message in (response.text if response.status_code == 400 else ended(browser, topic))


def test_a_redrive_to_the_topic_itself_is_refused(kafka: Broker, browser: Browser) -> None:
    dlq = kafka.topic(config=DLQ)
    assert "choose another topic" in browser.preview(REDRIVE, 400, topic=dlq, to=dlq)
