"""docs/configuration.md agrees with the config definitions."""

from pathlib import Path

import kbroker
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import TOPIC_CONFIGS
from kbroker.config.reference import page

DOCS = Path(kbroker.__file__).parent.parent / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    assert DOCS.read_text() == page(), "python -m kbroker.config.reference > docs/configuration.md"


def test_the_page_has_every_config():
    text = page()
    for name in (*BROKER_CONFIGS, *TOPIC_CONFIGS, *GROUP_CONFIGS):
        assert f"`{name}`" in text
