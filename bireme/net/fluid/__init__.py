"""Fluid's own protocol between trainers and servers."""
