"""One program becomes many: no arrays, no sockets, no files."""
