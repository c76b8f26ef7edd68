"""Program to program: each pass returns an edited clone."""
