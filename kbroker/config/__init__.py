"""Configuration: the definitions of all configs (Kafka's and kbroker's own), and BrokerConfig and TopicConfig."""

from kbroker.config.broker.broker_config import BrokerConfig
from kbroker.config.broker.listeners import Endpoint
from kbroker.config.topic_config import TopicConfig
from kbroker.config.values import ConfigError

__all__ = ["BrokerConfig", "ConfigError", "Endpoint", "TopicConfig"]
