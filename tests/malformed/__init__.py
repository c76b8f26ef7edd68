"""Malformed input of every kind, by seed: in process here, live in `live`; `make malformed`."""
