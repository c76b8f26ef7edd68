"""How processes talk: frames, sockets, shared memory, gRPC, signs of life."""
