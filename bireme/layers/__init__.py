"""What users call to build a program: one function per layer."""
