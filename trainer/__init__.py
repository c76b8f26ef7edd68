"""The trainer role: the link to the servers, and the effect of the operators that use it."""
