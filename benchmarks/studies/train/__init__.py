"""`python -m benchmarks train`: what communication hooks do to a training's speed and accuracy.

- `methods.py`: the hooks that are compared; `tasks.py`: what is trained; `training.py`: a replica
- parts, each run by the ranks of a job: `speed.py`, `overlap.py`, `hook_cpu.py`, `sharded.py`,
  `cadence.py`
- `variants.py`: options of hooks, each beside the hook without it
- `wire.py`, `timeline.py`: what is computed from the figures
- `study.py`: the cells to measure, kept in a file; `figures.py`, `report.py`, `*_report.py`,
  `pictures.py`: what is shown
- `cli.py`: the command; `worker.py`: one rank
"""
