"""MATHS: pure functions of tensors, no parameters."""
