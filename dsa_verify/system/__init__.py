"""The system around the kernels as a whole: random workloads, every wiring of the backend, an independent reference."""
