"""The filter expression of a view topic: which tags or keys its records have.

    expression  := "*" | alternative ("||" alternative)*
    alternative := TAG | "KEYS in (" KEY ("," KEY)* ")"

The tags are those of RocketMQ: a record has the tag TagA if its header TAGS is TagA. Its header KEYS has any number of
keys, separated by spaces.
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kbroker.config.values import ConfigError

VIEW_OF = "kbroker.view.of"
VIEW_FILTER = "kbroker.view.filter"
VIEW_CONFIGS = frozenset({VIEW_OF, VIEW_FILTER})

EVERY_RECORD = "*"

MAX_EXPRESSION_CHARACTERS = 4096
MAX_TERMS = 256

_KEYS_IN = re.compile(r"KEYS\s+in\s*\(([^()]*)\)", re.IGNORECASE)
# What no tag or key of an expression contains.
_RESERVED = re.compile(r"[\s|&(),'\"*]")


class TagExpression(NamedTuple):
    """Selects records with one of the tags or one of the keys; all records if both are empty."""

    tags: frozenset[bytes] = frozenset()
    keys: frozenset[bytes] = frozenset()

    @property
    def selects_all(self) -> bool:
        return not self.tags and not self.keys


def parse_tag_expression(text: str) -> TagExpression:
    """Parse an expression. Raises ConfigError, with a message that says what is wrong."""
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise _invalid(f"{len(text)} characters are more than {MAX_EXPRESSION_CHARACTERS}")
    if text.strip() == EVERY_RECORD:
        return TagExpression()
    tags: set[bytes] = set()
    keys: set[bytes] = set()
    for alternative in text.split("||"):
        term = alternative.strip()
        listed = _KEYS_IN.fullmatch(term)
        if listed is None:
            tags.add(_term(term, "tag"))
        else:
            keys.update(_term(key.strip(), "key") for key in listed[1].split(","))
    if len(tags) + len(keys) > MAX_TERMS:
        raise _invalid(f"{len(tags) + len(keys)} tags and keys are more than {MAX_TERMS}")
    return TagExpression(frozenset(tags), frozenset(keys))


def _term(term: str, kind: str) -> bytes:
    if not term:
        raise _invalid(f"a {kind} is empty")
    if _RESERVED.search(term) is not None:
        raise _invalid(f"{term!r} is not a {kind}; expected * or, for example, TagA || TagB || KEYS in (key1, key2)")
    return term.encode()


def _invalid(reason: str) -> ConfigError:
    return ConfigError(f"Invalid value for {VIEW_FILTER}: {reason}")


def without_empty_view(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides without the view configs that an ordinary topic has by default.

    Tools that set all configs of a topic, or copy them to another one, also send an empty VIEW_OF.
    """
    kept = dict(overrides)
    if not kept.get(VIEW_OF, "").strip():
        kept.pop(VIEW_OF, None)
        if kept.get(VIEW_FILTER, "").strip() == EVERY_RECORD:
            del kept[VIEW_FILTER]
    return kept


def check_view_configs(names: Collection[str], expression: str) -> None:
    """Raise ConfigError if the configs of a topic are not those of a view, or mix both. `names`: its overrides."""
    if VIEW_OF not in names:
        if VIEW_FILTER in names:
            raise ConfigError(f"{VIEW_FILTER} requires {VIEW_OF}, which says of which topic the view is")
        return
    others = sorted(set(names) - VIEW_CONFIGS)
    if others:
        raise ConfigError(f"A view has only the configs of its source, and cannot have {', '.join(others)}")
    parse_tag_expression(expression)


def check_same_source(current: str | None, altered: str | None) -> None:
    """Raise ConfigError if a topic would become a view, or a view another one. Both are the values of VIEW_OF."""
    if altered == current:
        return
    if current is None:
        raise ConfigError(f"{VIEW_OF}: an existing topic cannot become a view; create the view as a new topic")
    raise ConfigError(f"{VIEW_OF}: a view keeps its source '{current}'; create a new view, or delete this one first")
