"""How processes talk: frames, channels, the server shell, liveness."""
