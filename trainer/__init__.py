"""The trainer role: the link to the servers."""
