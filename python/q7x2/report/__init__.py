"""The ledgers of a job as one HTML page."""
