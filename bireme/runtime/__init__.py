"""How a program runs: values, scopes, places, compiled plans, the executor."""
