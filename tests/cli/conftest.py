"""The commands are tried on the runs of the reports' tests."""

from report.conftest import ended, stopped

__all__ = ["ended", "stopped"]
