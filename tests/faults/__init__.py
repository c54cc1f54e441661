"""Faults on purpose: how soon, and by which error, the ranks that are left are released.

Real processes on one host or on virtual hosts (``site``) run calls whose results they check
(``calls``, ``rank``). The controller injures them at a random point (``injuries``), and compares
what each survivor reports with the failure contract (``contract``, ``verdict``). ``__main__`` does
so for every event and cell (``trial``), ``soak`` for random cases (``soak_case``). ``rejoin`` and
``strangers`` measure what a killed host and an attack cost a training.
"""

STUDIES = ("rejoin", "strangers")  #: as benchmarks.harness.study describes them
