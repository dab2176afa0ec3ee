"""What DSA means: index scores, selection, absorbed MLA and cache write in float64 NumPy."""

from dsa_verify.oracle.expected import expected, selection

__all__ = ["expected", "selection"]
