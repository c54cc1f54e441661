"""PyTorch's DDP communication hooks by their own names and arguments, computed by q7x2 in C++.

A script that says ``ddp.register_comm_hook(state, hook)`` changes one import::

    from q7x2.comm_hooks import PowerSGDState, powerSGD_hook

``hook`` is then a Python function, as DDP wants it: it takes the GIL to hand a bucket over and to
hand the result back. ``q7x2.attach`` needs no GIL and offers more options.
"""

# No postponed annotations: DDP compares those of a hook with its own classes.
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup

from q7x2.hooks.attached import Attached, HookStats
from q7x2.hooks.options import Allreduce, PowerSGD
from q7x2.hooks.runner import expect_buckets, make_runner, part_of, reduced_parameters
from q7x2.hooks.stateless import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
    hand_over,
    quantization_perchannel_hook,
    quantization_pertensor_hook,
    reduce_over,
)

if TYPE_CHECKING:
    from q7x2._C import HookRunner

__all__ = [
    "PostLocalSGDState",
    "PowerSGDState",
    "allreduce_hook",
    "batched_powerSGD_hook",
    "bf16_compress_hook",
    "fp16_compress_hook",
    "post_localSGD_hook",
    "powerSGD_hook",
    "powersgd_hook",
    "quantization_perchannel_hook",
    "quantization_pertensor_hook",
]


class PowerSGDState:
    """PyTorch's arguments for :func:`powerSGD_hook`, and the state of one model's hook.

    They mean the same as in ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook``, but
    ``start_powerSGD_iter`` may also be 0: state belongs to parameters, so DDP's new buckets
    after the first step do not matter. Three arguments have no effect: matrices of one shape are
    always batched, the orthogonalisation needs no ``orthogonalization_epsilon`` because it can
    handle matrices that lost rank, and nothing is logged because ``stats`` has the figures.

    All ranks of ``process_group`` must make their first backward together, because it makes the
    process groups for the hook's own collectives.

    It can be pickled, also by ``torch.save``, without its process group: it then has the default
    group. Residuals and factors are saved if :meth:`of` was called before the first backward, and
    they are loaded by the :meth:`of` of the loaded state.

    Args:
        process_group: The ranks to average over. None: the default group.
        matrix_approximation_rank: The rank of the factors.
        start_powerSGD_iter: Number of first iterations without compression.
        min_compression_rate: A matrix is compressed only if that makes it more than this many times
            smaller.
        use_error_feedback: Add what was lost to the next gradient.
        warm_start: Begin each step with the factor of the last one.
        orthogonalization_epsilon: It has no effect.
        random_seed: The seed of the first factors.
        compression_stats_logging_frequency: It has no effect.
        batch_tensors_with_same_shape: It has no effect.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = True,
    ) -> None:
        self.process_group = process_group
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.compression_stats_logging_frequency = compression_stats_logging_frequency
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        self.options = PowerSGD(
            rank=matrix_approximation_rank,
            start_iter=start_powerSGD_iter,
            min_compression_rate=min_compression_rate,
            use_error_feedback=use_error_feedback,
            warm_start=warm_start,
            factors="fp32",
            random_seed=random_seed,
        )
        self._made: HookRunner | None = None
        self._parameters: list[tuple[str, torch.Tensor]] = []
        self._attached: Attached | None = None
        self._loaded: dict[str, Any] | None = None  # what a loaded state has for `of`
        self._begin = 0  # number of iterations before those that the runner counts

    def _runner(self, device: torch.device) -> "HookRunner":
        if self._made is None:
            if self._loaded is not None and not self._parameters:
                raise RuntimeError(
                    "this PowerSGDState was loaded: call PowerSGDState.of(ddp) before the first "
                    "backward, so that its residuals find their parameters"
                )
            self._made = make_runner(
                self._remaining(), self.process_group, self._parameters, device=device
            )
        return self._made

    def _remaining(self) -> PowerSGD:
        """The options of the runner."""
        return replace(self.options, start_iter=max(0, self.options.start_iter - self._begin))

    @property
    def matrix_approximation_rank(self) -> int:
        """The rank of the factors."""
        assert isinstance(self.options.rank, int)
        return self.options.rank

    @property
    def start_powerSGD_iter(self) -> int:
        """Number of first iterations without compression."""
        return self.options.start_iter

    @property
    def min_compression_rate(self) -> float:
        """How many times smaller a matrix must become to be compressed."""
        return self.options.min_compression_rate

    @property
    def use_error_feedback(self) -> bool:
        """Whether what was lost is added to the next gradient."""
        return self.options.use_error_feedback

    @property
    def warm_start(self) -> bool:
        """Whether a step begins with the factor of the last one."""
        return self.options.warm_start

    @property
    def random_seed(self) -> int:
        """The seed of the first factors."""
        return self.options.random_seed

    @property
    def iter(self) -> int:
        """Number of iterations so far."""
        if self._made is not None:
            return self._begin + int(self._made.step)
        return self._begin + (0 if self._loaded is None else int(self._loaded["step"]))

    @property
    def total_numel_before_compression(self) -> int:
        """Number of fp32 elements of all gradients so far."""
        return self.compression_stats()[1]

    @property
    def total_numel_after_compression(self) -> int:
        """Number of fp32 elements that were sent for them."""
        return self.compression_stats()[2]

    def __getstate__(self) -> dict[str, Any]:
        hook = self._loaded if self._attached is None else self._attached.state_dict()
        if hook is None and self._made is not None:
            warnings.warn(
                "a PowerSGDState is saved without its residuals and factors: call "
                "PowerSGDState.of(ddp) before the first backward to save them",
                stacklevel=2,
            )
        kept = (
            *("orthogonalization_epsilon", "compression_stats_logging_frequency"),
            *("batch_tensors_with_same_shape", "options"),
        )
        begin = self.iter if hook is None else self._begin
        return {name: getattr(self, name) for name in kept} | {"_begin": begin, "_loaded": hook}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = dist.group.WORLD
        self._made, self._parameters, self._attached = None, [], None
        vars(self).update(state)

    @property
    def stats(self) -> HookStats:
        """What the hook has done on this rank; zeros before the first backward."""
        if self._made is None:
            return HookStats(0, 0, 0, 0, 0, {})
        return HookStats(**self._made.stats())

    def compression_stats(self) -> tuple[float, int, int]:
        """As PyTorch's: the rate, and numbers of fp32 elements before and after compression."""
        stats = self.stats
        rate = stats.gradient_bytes / stats.message_bytes if stats.message_bytes else 0.0
        return rate, stats.gradient_bytes // 4, stats.message_bytes // 4

    def of(self, ddp: torch.nn.parallel.DistributedDataParallel) -> Attached:
        """The hook as ``q7x2.attach`` returns it, to save and load its state.

        DDP does not tell a hook the names of parameters, and state is saved by name; so a state
        that is to be saved or loaded must meet its model before the first backward, on all ranks,
        and after it has been registered with :func:`batched_powerSGD_hook`, if it is that one's.

        Args:
            ddp: The model that the state is registered with.

        Raises:
            RuntimeError: The first backward is over.
            HookStateError: The state was loaded, and is of another model, job or version.
        """
        if not self._parameters:
            if self._made is not None:
                raise RuntimeError(
                    "call PowerSGDState.of(ddp) before the first backward: state is kept by "
                    "parameter's name"
                )
            self._parameters = reduced_parameters(ddp)
            if (batched_powerSGD_hook, self) in ddp._comm_hooks:
                self.options = replace(self.options, batched=True)
        if self._attached is not None:
            return self._attached
        group = dist.group.WORLD if self.process_group is None else self.process_group
        assert group is not None  # DDP would not be there
        runner = self._runner(self._parameters[0][1].device)
        expect_buckets(ddp, runner)
        self._attached = Attached(
            runner,
            self._remaining(),
            self._parameters,
            rank=dist.get_rank(group),
            world_size=dist.get_world_size(group),
            part=part_of(group),
        )
        if self._loaded is not None:
            self._attached.load_state_dict(self._loaded)
        return self._attached


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD (Vogels et al., 2019); see :class:`q7x2.PowerSGD`.

    >>> state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=4)
    >>> ddp.register_comm_hook(state, q7x2.comm_hooks.powerSGD_hook)

    Args:
        state: The arguments, and the state of the model's hook.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.

    Raises:
        TypeError: ``state`` is not a :class:`PowerSGDState`.
    """
    _check_state(state, PowerSGDState)
    return hand_over(bucket, state._runner(bucket.buffer().device))


powersgd_hook = powerSGD_hook


def batched_powerSGD_hook(
    state: PowerSGDState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD of whole buckets, each folded into one square matrix.

    >>> state = q7x2.comm_hooks.PowerSGDState(None, matrix_approximation_rank=4)
    >>> ddp.register_comm_hook(state, q7x2.comm_hooks.batched_powerSGD_hook)

    Args:
        state: The arguments, and the state of the model's hook.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.

    Raises:
        RuntimeError: ``state`` has been used with :func:`powerSGD_hook`.
        TypeError: ``state`` is not a :class:`PowerSGDState`.
    """
    _check_state(state, PowerSGDState)
    if not state.options.batched:
        if state._made is not None:
            raise RuntimeError("this PowerSGDState is powerSGD_hook's: make another one")
        state.options = replace(state.options, batched=True)
    return hand_over(bucket, state._runner(bucket.buffer().device))


@dataclass
class PostLocalSGDState:
    """PyTorch's arguments for :func:`post_localSGD_hook`.

    Args:
        process_group: The ranks to average over at first. None: the default group.
        subgroup: The ranks to average over afterwards. None: the ranks of this host.
        start_localSGD_iter: The iteration from which on only the subgroup averages.
        post_local_gradient_allreduce: False: from then on gradients are not averaged at all.
    """

    process_group: ProcessGroup | None
    subgroup: ProcessGroup | None
    start_localSGD_iter: int
    post_local_gradient_allreduce: bool = True
    iter: int = field(default=0, init=False)


def post_localSGD_hook(
    state: PostLocalSGDState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Reduces over all ranks at first, then over the subgroup only (Lin et al., 2020).

    The models are to be averaged from then on after the optimizer's step, for example by PyTorch's
    ``PeriodicModelAverager``.

    >>> state = q7x2.comm_hooks.PostLocalSGDState(None, None, start_localSGD_iter=100)
    >>> ddp.register_comm_hook(state, q7x2.comm_hooks.post_localSGD_hook)

    Args:
        state: The arguments, and the state of the model's hook.
        bucket: The gradients, from DDP.

    Returns:
        A future of the bucket's mean.

    Raises:
        TypeError: ``state`` is not a :class:`PostLocalSGDState`.
    """
    _check_state(state, PostLocalSGDState)
    is_global = state.iter < state.start_localSGD_iter
    if bucket.is_last():
        state.iter += 1
    if is_global:
        return reduce_over(state.process_group, bucket, Allreduce())
    if not state.post_local_gradient_allreduce:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    if state.subgroup is None:
        state.subgroup, _ = dist.new_subgroups()  # type: ignore[no-untyped-call]
    return reduce_over(state.subgroup, bucket, Allreduce())


def _check_state(state: Any, kind: type) -> None:
    """Raise TypeError unless ``state`` is what the hook was to be registered with."""
    if not isinstance(state, kind):
        raise TypeError(f"the hook's state must be a {kind.__name__}, got {state!r}")
