"""The shell of a server: connections, the event loop, Fluid's own dialect."""
