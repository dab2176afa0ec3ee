"""Golden records: what each quick scenario asks, means, and costs a provider, pinned in `golden/surfaces/`."""
