"""The Ledger: what happened in a job, and why."""
