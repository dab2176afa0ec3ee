"""Every surface in plain jax.numpy: readable, jit-able, and one of the two kernel sets that the backend can run."""
