"""The cost of a model from its configuration alone: counts, peak memory, and plans made of both."""
