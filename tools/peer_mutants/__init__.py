"""The handwritten mutants in another project's kernels, under its own tests and under this suite."""
