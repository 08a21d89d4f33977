"""Pre-registered studies: what a library is worth, against baselines and controls."""
