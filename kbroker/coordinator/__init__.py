"""Coordinators: state kept in an internal topic. `runtime.py` is the log's side, for any of them; the rest
is groups.
"""
