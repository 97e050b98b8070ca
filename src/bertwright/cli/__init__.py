"""The command line: one command per stage, and a flag for every setting."""
