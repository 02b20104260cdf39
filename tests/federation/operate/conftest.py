"""The fixtures of real federations, which tests outside this folder may use too."""

from conftest_deploy import federation_of, running

__all__ = ["federation_of", "running"]
