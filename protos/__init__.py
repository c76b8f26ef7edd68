"""Schemas and the code generated from them; nothing else."""
