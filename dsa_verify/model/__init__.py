"""A GLM-MoE-DSA and DeepSeek-V3.2 decoder over paged caches, its checkpoints, and the runner that an engine drives."""
