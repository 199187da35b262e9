"""Reassignments on request, and plans of many reassignments that the controller runs in steps."""
