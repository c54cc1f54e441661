"""`python -m benchmarks policy`: advice beside a sweep, and trainings that diverge."""
