"""What must not get worse: the figures to reach, and comparisons with earlier ones."""
