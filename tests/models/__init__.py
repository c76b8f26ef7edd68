"""The models that users distribute, small enough to train in a test."""
