"""Readers and their decorators: where batches come from."""
