"""Kernels: the built-in ones in Pallas and in jax.numpy, and the providers that hand kernels to the suite."""
