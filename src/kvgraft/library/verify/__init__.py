"""Verifiers: who judges a solution, and how.

`base` has the words and `make_verifier`, `extract` finds the answer in a model's text, and each
verifier is a module of its own: `math`, `exact`, `regex`, `command`. The modules `math_compare`,
`worker_main` and `command_guard` run in child processes only.
"""
