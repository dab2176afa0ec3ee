"""dsa-verify: correctness and accuracy regression suite for DeepSeek Sparse Attention kernels on TPU."""

__version__ = "0.1.0"
