"""docs/configuration.md is what the tables say, and every config without effect has a reason."""

from pathlib import Path

import pytest

import kbroker
from kbroker.config.acting import BROKER, CLIENT_METRICS, GROUP, TOPIC, acts, inert_rows
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import TOPIC_CONFIGS
from kbroker.config.inert import by_reason, why_inert
from kbroker.config.reference import page

DOCS = Path(kbroker.__file__).parent.parent / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    assert DOCS.read_text() == page(), "python -m kbroker.config.reference > docs/configuration.md"


def test_the_page_has_every_config():
    text = page()
    for name in (*BROKER_CONFIGS, *TOPIC_CONFIGS, *GROUP_CONFIGS):
        assert f"`{name}`" in text


@pytest.mark.parametrize("kind", [TOPIC, BROKER, CLIENT_METRICS, GROUP])
def test_every_config_without_effect_has_a_reason(kind: int):
    rows = inert_rows(kind)
    assert not any(acts(kind, row.name) for row in rows)
    assert sorted(row.name for listed in by_reason(rows).values() for row in listed) == sorted(row.name for row in rows)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ssl.keystore.location", "there is no TLS, SASL, authorization or delegation token yet"),
        ("listener.name.x.ssl.keystore.location", "there is no TLS, SASL, authorization or delegation token yet"),
        ("listener.name.x.socket.send.buffer.bytes", "it acts for all listeners only"),
        ("controller.quorum.voters", "kbroker has no metadata quorum"),
        ("controller.quota.window.num", "there are no quotas yet"),
        ("remote.log.reader.threads", "there is no tiered storage"),
    ],
)
def test_reasons(name: str, reason: str):
    assert why_inert(name) == reason
