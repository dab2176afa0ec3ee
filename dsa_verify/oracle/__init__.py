"""What DSA means: index scores, selection, absorbed MLA and cache write in float64 NumPy."""

from dsa_verify.oracle.expected import Expected, Selection, expected, selection

__all__ = ["Expected", "Selection", "expected", "selection"]
