"""The layouts of others, recognised by the names of their tensors, never by the file's name."""
