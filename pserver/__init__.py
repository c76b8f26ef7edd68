"""The server role: a state machine, its shards and its service."""
