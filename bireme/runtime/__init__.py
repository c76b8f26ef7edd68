"""The runtime: scopes, compiled plans, the executor."""
