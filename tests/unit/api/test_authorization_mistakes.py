"""Planted mistakes in the gate: the stories of test_authorization.py and the two beside it reveal each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kbroker.api import (
    k00_produce,
    k09_offset_fetch,
    k10_find_coordinator,
    k19_create_topics,
    k68_consumer_groups,
    k78_share_fetch,
)
from kbroker.api.k03_metadata import ResponseBuilder
from kbroker.authorization.authorizer import Access
from kbroker.coordinator.group.consumer import regex_resolver
from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
from kbroker.coordinator.group.consumer.regex import match_blocking
from kbroker.metadata.image import MetadataImage
from kbroker.replica.fetch import fetch_manager
from kbroker.replica.fetch.fetch_session import FetchSession
from kbroker.server import connection
from tests.unit.api import test_authorization as topics
from tests.unit.api import test_authorized_groups as groups
from tests.unit.api import test_authorized_records as records

Plant = Callable[[pytest.MonkeyPatch], None]


def attribute(owner: Any, name: str, value: Any) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def always(value: object) -> property:
    return property(lambda self: value, lambda self, other: None)


def serve_large_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = connection.serve_frame

    def serve_unchecked(server: Any, context: Any, frame: Any, pos: int) -> Any:
        context.handler = replace(context.handler, handle=k00_produce.handle)
        return serve(server, context, frame, pos)

    monkeypatch.setattr(connection, "serve_frame", serve_unchecked)


NEVER_RENEWED = attribute(fetch_manager, "renew_access", lambda session, partitions: None)
IDS_UNKNOWN = attribute(MetadataImage, "topic_name", lambda self, key: key if isinstance(key, str) else None)
MISTAKES = {
    "cache key without the rights: Metadata": (
        attribute(Access, "number", always(0)), topics.test_a_cached_response_is_only_for_the_same_rights,
    ),
    "cache key without the rights: Fetch": (
        attribute(Access, "number", always(0)), records.test_a_cached_response_is_only_for_the_same_rights,
    ),
    "delayed Fetch not checked again": (NEVER_RENEWED, records.test_a_fetch_that_waits_is_checked_again),
    "cold read not checked again": (NEVER_RENEWED, records.test_a_cold_read_is_checked_again),
    "revocation without new records": (
        attribute(fetch_manager, "use_access", lambda session, access, partitions: setattr(session, "access", access)),
        records.test_a_session_learns_of_a_revocation_without_new_records,
    ),
    "another user's fetch session": (
        attribute(FetchSession, "principal", always("anybody")), records.test_a_session_belongs_to_its_principal,
    ),
    "large Produce unchecked": (serve_large_unchecked, records.test_a_large_request_is_checked_too),
    "topic id unresolved": (IDS_UNKNOWN, records.test_a_topic_id_is_resolved),
    "creation by Metadata unchecked": (
        attribute(ResponseBuilder, "may_create", lambda self, name: True),
        topics.test_metadata_does_not_show_what_may_not_be_described,
    ),
    "view without READ on its source": (
        attribute(k19_create_topics, "_refuse_source", lambda request, topic: None),
        topics.test_a_view_needs_the_right_to_read_its_source,
    ),
    "waiting ShareFetch not checked again": (
        attribute(k78_share_fetch, "_check_topic", lambda services, context, topic_id: None),
        groups.test_a_share_fetch_that_waits_is_checked_again,
    ),
    "all offsets of a group": (
        attribute(k09_offset_fetch, "_may_describe", lambda access, topic: True),
        groups.test_offsets_of_other_groups_and_topics_are_not_shown,
    ),
    "creation by FindCoordinator unchecked": (
        attribute(k10_find_coordinator, "_refusal", lambda services, context, key_type, key: None),
        groups.test_who_may_not_describe_a_group_cannot_let_the_offsets_topic_be_created,
    ),
    "regular expression over all topics": (
        attribute(regex_resolver, "match_blocking", lambda due, topics, access: match_blocking(due, topics)),
        groups.test_a_regular_expression_matches_what_the_member_may_describe,
    ),
    "regular expression with the rights of before": (
        attribute(ConsumerGroups, "_note_client", lambda self, *client: setattr(self, "_last_client", client)),
        groups.test_a_regular_expression_matches_what_the_member_may_describe,
    ),
    "topics of a described group": (
        attribute(k68_consumer_groups, "assigned_topics", lambda group: iter(())),
        groups.test_a_group_with_a_hidden_topic_is_not_described,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    plant, story = MISTAKES[mistake]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        story()
