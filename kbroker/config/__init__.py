"""Configuration: tables of rows, and typed views of the values."""

from kbroker.config.broker.broker_config import BrokerConfig
from kbroker.config.broker.listeners import Endpoint
from kbroker.config.topic_config import TopicConfig
from kbroker.config.values import ConfigError

__all__ = ["BrokerConfig", "ConfigError", "Endpoint", "TopicConfig"]
