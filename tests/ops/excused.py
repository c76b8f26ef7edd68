"""Operators that no single-operator case can check, and the test file that checks each instead."""

CHECKED_ELSEWHERE: dict[str, str] = {}
