"""Files of named tensors, whatever their format."""
