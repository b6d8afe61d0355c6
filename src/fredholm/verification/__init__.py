"""The library's central claim, executed: every classical layer is an instance of one integral operator."""

from fredholm.verification.check import Check
from fredholm.verification.verify import table, verify

__all__ = ["Check", "table", "verify"]
