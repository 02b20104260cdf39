"""The fixtures of real federations, which tests outside this folder may use too."""

from conftest_deploy import running

__all__ = ["running"]
