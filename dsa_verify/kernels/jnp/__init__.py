"""Every surface in plain jax.numpy: readable, jit-able, and the fallback of the backend."""
