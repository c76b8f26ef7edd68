"""What a server records so that its successor can continue."""
