"""Verifiers: who judges a solution, and how.

`base` has the words, `specs` makes a verifier by its spec, `extract` finds the answer in a text,
and each verifier is a module of its own: `math`, `exact`, `regex`, `command`. The modules
`math_compare`, `worker_main` and `command_guard` run in child processes only.
"""
