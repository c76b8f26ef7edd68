"""Metrics of a process, their exposition, and the admin port."""
