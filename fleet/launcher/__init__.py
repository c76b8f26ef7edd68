"""The launcher: runs a cluster on this machine and watches its processes."""
