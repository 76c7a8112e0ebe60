"""PIXELS to what a model reads: crops, sizes, colours, maps and mixtures, as functions of given random numbers."""
