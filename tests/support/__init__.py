"""Doubles, programs and strategies that several tests share."""
