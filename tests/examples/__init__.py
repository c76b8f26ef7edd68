"""The examples run, and their helpers do what they say."""
