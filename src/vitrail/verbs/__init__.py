"""The verbs of Vitrail: what each command does, as a function."""
