"""Checks the histories of simulated clients for anomalies."""

from kbroker.simulation.checker.anomaly import Anomaly, render
from kbroker.simulation.checker.check import check

__all__ = ["Anomaly", "check", "render"]
