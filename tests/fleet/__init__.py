"""The launcher, roles and command line."""
