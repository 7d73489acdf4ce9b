"""Plain pickle: functions of modules only."""

from pickle import dumps

__all__ = ["dumps"]
