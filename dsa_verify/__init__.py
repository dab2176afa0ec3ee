"""dsa-verify: correctness and accuracy regression suite for DeepSeek Sparse Attention kernels on TPU."""

__version__ = "0.1.0"

SCHEMA = 1
"""Of every JSON document that a command prints; it grows when a reader of the old one would be misled."""
