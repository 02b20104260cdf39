"""What holds for every test: none asserts a time, so hypothesis does not either; torch has one thread, because some tests fork.

A process that forks while torch has threads leaves its child waiting for them for ever.
"""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
