"""The library's central claim, executed: every classical layer is an instance of one integral operator."""

from fredholm.verification.check import Check
from fredholm.verification.report import table
from fredholm.verification.verify import verify

__all__ = ["Check", "table", "verify"]
