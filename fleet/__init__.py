"""The top floor: Fleet, role makers, the launcher, the command line."""
