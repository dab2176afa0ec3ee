"""A provider whose module cannot be imported."""

raise RuntimeError("built for another JAX")
