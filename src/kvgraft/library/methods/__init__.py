"""Methods: verified programs for families of problems. docs/METHODS.md says how they work."""
