"""The Group port and its engines."""
