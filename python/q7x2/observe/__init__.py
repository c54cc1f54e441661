"""Numbers and records of a running job, for programs and dashboards.

docs/seeing.md has examples.
"""

from typing import TYPE_CHECKING

from q7x2._core.lazy import lazy_names

_NAMES = {
    "metrics": ("Scalars", "serve_metrics"),
    "opentelemetry": ("export_to_opentelemetry",),
    "recorder": ("dump", "flight_recorder"),
    "statistics": ("stats",),
    "step_log": ("log_step",),
    "torch_profile": ("add_to_trace",),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)

if TYPE_CHECKING:
    from q7x2.observe.metrics import Scalars as Scalars
    from q7x2.observe.metrics import serve_metrics as serve_metrics
    from q7x2.observe.opentelemetry import export_to_opentelemetry as export_to_opentelemetry
    from q7x2.observe.recorder import dump as dump
    from q7x2.observe.recorder import flight_recorder as flight_recorder
    from q7x2.observe.statistics import stats as stats
    from q7x2.observe.step_log import log_step as log_step
    from q7x2.observe.torch_profile import add_to_trace as add_to_trace
