"""What the studies share: ranks, virtual hosts, timing, statistics, tables, pictures."""
