"""PICTURES: the only code that draws. Arrays in, PNG bytes out; nothing is shown, and no global state is touched."""
