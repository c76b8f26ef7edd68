"""The server role: a state machine, its shell, and the program's blocks that it runs."""
