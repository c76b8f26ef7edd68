"""The rules of a server, without I/O: events in, instructions out."""
