"""Configuration: tables of rows, and typed views of the values."""

from kbroker.config.broker import BrokerConfig
from kbroker.config.listeners import Endpoint
from kbroker.config.topic import TopicConfig
from kbroker.config.values import ConfigError

__all__ = ["BrokerConfig", "ConfigError", "Endpoint", "TopicConfig"]
