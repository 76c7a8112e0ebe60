"""BYTES to BATCH: sources, decoding, transforms, and the loader with its seeded, resumable order."""
