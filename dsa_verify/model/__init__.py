"""A GLM-MoE-DSA and DeepSeek-V3.2 decoder over paged caches: attention backend, checkpoints, and an engine's runner."""
