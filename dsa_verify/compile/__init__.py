"""Kernels under the real TPU compiler, on a machine without a TPU: what it refuses, and what it would allocate."""
