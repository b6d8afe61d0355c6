"""Operators: a kernel bound to its evaluation, with the channel parameters round the integral."""

from fredholm.operators.integral import IntegralOperator

__all__ = ["IntegralOperator"]
