"""What a server holds: values, updates, replies."""
