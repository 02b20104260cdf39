"""What holds for every test: none asserts a time, so hypothesis does not either."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
