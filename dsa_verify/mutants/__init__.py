"""Kernels broken on purpose: the proof that the suite can fail."""
