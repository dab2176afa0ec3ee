"""The gate: may sparse prefill become the default? Paired LongBench answers of a dense and a sparse arm decide."""
