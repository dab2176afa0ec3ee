"""Kernels, and the system around them, broken on purpose: the proof that the suite can fail."""
