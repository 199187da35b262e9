"""Checks the histories of simulated clients for anomalies."""

from kbroker.simulation.checker.anomaly import Anomaly
from kbroker.simulation.checker.check import check
from kbroker.simulation.checker.report import render

__all__ = ["Anomaly", "check", "render"]
