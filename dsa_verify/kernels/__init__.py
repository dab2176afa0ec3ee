"""The contract of every surface and the providers that implement them."""
