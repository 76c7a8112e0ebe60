"""A model made fast: what the machine is asked for."""
