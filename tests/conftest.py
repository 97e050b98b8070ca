"""What holds for all tests."""

from hypothesis import settings

# No test asserts a time: on a busy machine any example may take long.
settings.register_profile("bertwright", deadline=None)
settings.load_profile("bertwright")
