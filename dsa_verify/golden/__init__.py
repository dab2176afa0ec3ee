"""Golden records: what each quick scenario asks, what the oracle answers, and what each provider used of its budget."""
