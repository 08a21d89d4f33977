"""Runs programs that nobody has read, in a process tree that can harm nothing (docs/SANDBOX.md)."""
