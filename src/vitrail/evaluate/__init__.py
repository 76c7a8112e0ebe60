"""How good a model is: accuracy, every image counted once."""
