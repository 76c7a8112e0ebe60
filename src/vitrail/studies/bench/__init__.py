"""How fast this machine is with Vitrail, beside whichever other libraries are installed, and how far from its limits.

`table` says what a row is, `rows` holds them, `runner` measures any of them and knows none.
"""
