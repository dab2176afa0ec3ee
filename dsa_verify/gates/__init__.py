"""The gate: may sparse prefill become the default? Paired answers of a dense and a sparse arm decide."""
