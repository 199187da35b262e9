"""Finds the views among the topics of the metadata image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.queue_configs import VIEW_FILTER, VIEW_OF, parse_tag_expression
from kbroker.config.values import ConfigError
from kbroker.queues.views.tag_filter import TagFilter

if TYPE_CHECKING:
    from kbroker.metadata.image import MetadataImage, TopicImage
    from kbroker.replica.fetch.read_filter import ReadFilter
    from protocol.fast.fetch import TopicKey


class View:
    """Implements ReadView: a view, with its source and filter as they were when it was looked up."""

    __slots__ = ("_expression", "_image", "_topic_id", "read_filter", "source")

    def __init__(self, image: MetadataImage, topic: TopicImage) -> None:
        self._image = image
        self._topic_id = topic.topic_id
        self._expression = topic.configs.get(VIEW_FILTER, "*")
        self.source = topic.view_of
        expression = parse_tag_expression(self._expression)
        self.read_filter: ReadFilter | None = None if expression.selects_all else TagFilter(expression)

    @property
    def is_current(self) -> bool:
        topic = self._image.topics_by_id.get(self._topic_id)
        return topic is not None and topic.configs.get(VIEW_FILTER, "*") == self._expression


class ViewDirectory:
    """Implements ReadViews. Views are cached by topic id until their filter changes."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._views: dict[bytes, View] = {}

    def find(self, key: TopicKey) -> View | None:
        """Return the view with a topic's name or id; None if the topic is not a view."""
        image = self._image
        topic = image.topics_by_id.get(key) if isinstance(key, bytes) else image.topics.get(key)
        if topic is None or VIEW_OF not in topic.configs:
            return None
        view = self._views.get(topic.topic_id)
        if view is None or not view.is_current:
            self._views = {topic_id: each for topic_id, each in self._views.items() if each.is_current}
            try:
                view = self._views[topic.topic_id] = View(image, topic)
            except ConfigError:
                # A later version wrote the filter. The view is not served, since it might show the wrong records.
                return None
        return view
