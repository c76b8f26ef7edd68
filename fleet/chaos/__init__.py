"""Compares runs of a user's job: a cluster with one process, a disturbed run with a quiet one."""
