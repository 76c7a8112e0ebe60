"""Where images come from: each kind of source in a module of its own."""
