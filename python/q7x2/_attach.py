"""``attach``: a communication hook for a DistributedDataParallel model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from q7x2 import _hook_state

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    from q7x2._hook_options import HookOptions


@dataclass(frozen=True)
class HookStats:
    """What a hook has done on this rank since it was attached.

    Attributes:
        steps: Backwards whose gradients were reduced.
        skipped_steps: Of these, the ones with Inf or NaN, which left no trace in the state.
        buckets: All of DDP's buckets together.
        gradient_bytes: Of those buckets.
        message_bytes: Of what went into all-reduces in their place, of selections about as many. On
            the wire each rank sends, and receives, 2 (n - 1) / n times that; with a selection up to
            n times as much, since a sum holds whatever any rank has selected.
        cpu_seconds: Of the hook's own thread, by phase.
    """

    steps: int
    skipped_steps: int
    buckets: int
    gradient_bytes: int
    message_bytes: int
    cpu_seconds: dict[str, float]


@dataclass(frozen=True)
class HookEvent:
    """A phase of a bucket, or a ``"collective"``; times in seconds of ``time.monotonic()``."""

    step: int
    bucket: int
    name: str
    lane: int
    begin: float
    end: float


class Attached:
    """A hook at work on one model; made by :func:`attach`.

    It is a ``torch.distributed.checkpoint`` Stateful. State can be read and changed between steps
    only; within one, its methods raise RuntimeError.
    """

    def __init__(
        self,
        runner: Any,
        options: HookOptions,
        parameters: list[tuple[str, torch.Tensor]],
        rank: int,
        world_size: int,
        scaler: Any = None,
        part: str | None = None,
        threads: int = 1,
    ) -> None:
        self.options = options
        self._threads = threads
        self._runner = runner
        self._shapes = _hook_state.shapes_of(parameters)
        self._rank, self._world_size = rank, world_size
        self._keys = _hook_state.Keys(part)
        self._scaler = scaler
        self._loss_scale: float = scaler.get_scale() if scaler is not None else 1.0
        self._removable: list[Any] = []
        self._is_detached = False

    @property
    def stats(self) -> HookStats:
        return HookStats(**self._runner.stats())

    @property
    def step(self) -> int:
        """Reductions so far, those before a loaded state's checkpoint included."""
        step: int = self._runner.step
        return step

    def trace(self, enabled: bool = True) -> None:
        """Record from now on what :meth:`take_events` returns, or stop."""
        self._runner.trace(enabled)

    def take_events(self) -> list[HookEvent]:
        """What was recorded since the last call."""
        return [HookEvent(**event) for event in self._runner.take_events()]

    def scale_changed(self, old: float, new: float) -> None:
        """The loss scale went from ``old`` to ``new``: residuals follow it.

        A scaler given to :func:`attach` is followed without this.
        """
        if not (old > 0 and new > 0):
            raise ValueError(f"loss scales must be positive, got {old} and {new}")
        if new != old:
            self._runner.rescale(new / old)
        self._loss_scale = self._loss_scale * new / old

    def detach(self) -> None:
        """Reduce gradients as DDP does without a hook from now on, and drop the state.

        DDP itself cannot be rid of a hook: it stays registered.
        """
        self._runner.detach()
        self._is_detached = True
        for each in self._removable:
            each.remove()
        self._removable.clear()

    def rebind(self, ddp: DistributedDataParallel) -> None:
        """Reduce the gradients of ``ddp`` from now on: the same model over another process group.

        After a failed collective the hook is as it was before the step, but its process groups
        cannot be used again. Make a group of the ranks that are left, a DistributedDataParallel
        over it, and give it to this method on all of them. What they keep for each parameter goes
        on; what a rank that is gone kept is lost.

        Raises:
            ValueError: The ranks do not go on from the same step, or have different hooks.
            RuntimeError: ``ddp`` has a hook already.
        """
        shared, local, step = self._runner.save()
        parameters = reduced_parameters(ddp)
        if _hook_state.shapes_of(parameters) != self._shapes:
            raise ValueError("rebind needs the same model: names or shapes of parameters differ")
        runner = make_runner(self.options, ddp.process_group, parameters, self._threads, step=step)
        runner.load(shared, local, step)
        _register(ddp, runner, self.options)
        self.detach()
        self._runner, self._is_detached = runner, False
        self._rank, self._world_size = _place_in(ddp.process_group)
        self._keys = _hook_state.Keys(part_of(ddp.process_group))
        if self._scaler is not None:
            self._before_forward(ddp, self._follow_scaler)

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that the hook remembers; of what each rank has for itself, this rank's.

        It holds ``"shared"``, equal on all ranks, and ``"local"``, by rank. Loaded on as many
        ranks, training goes on with the bits of one that was not stopped.
        """
        shared, local, step = self._runner.save()
        return self._state(shared, {self._keys.of_rank(self._rank): local}, step)

    def empty_state_dict(self, world_size: int) -> dict[str, Any]:
        """A state of ``world_size`` ranks with zeros in it, for a checkpoint to be loaded into.

        ``torch.distributed.checkpoint.load`` fills the tensors it is shown. To resume on another
        number of ranks, show it those of all ranks that saved::

            state = {"hook": attached.empty_state_dict(world_size=4)}
            torch.distributed.checkpoint.load(state, checkpoint_id=path)
            attached.load_state_dict(state["hook"])
        """
        import torch

        shared, local, step = self._runner.save()
        ranks = {
            self._keys.of_rank(rank): {
                kind: {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
                for kind, tensors in local.items()
            }
            for rank in range(world_size)
        }
        return self._state(shared, ranks, step) | {"world_size": world_size}

    def _state(self, shared: Any, local: Any, step: int) -> dict[str, Any]:
        return {
            "format": _hook_state.FORMAT,
            "version": _hook_state.VERSION,
            "hook": type(self.options).__name__,
            "recipe": self.options.recipe(),
            "world_size": self._world_size,
            "step": step,
            "loss_scale": self._loss_scale,
            "shapes": dict(self._shapes),
            "shared": self._keys.add(_hook_state.packed(shared)),
            "local": local,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Take over what :meth:`state_dict` gave.

        Args:
            state: This rank's, or a list with those of all ranks that saved. A list may come from
                another number of ranks: each rank then takes an equal share of the sum of the
                residuals, so that no gradient is lost.

        Raises:
            HookStateError: It is of another model, hook, number of ranks or version. Nothing has
                changed then.
        """
        whole = dict(state) if isinstance(state, Mapping) else _hook_state.merged(state)
        _hook_state.check(whole, type(self.options).__name__, self.options.recipe(), self._shapes)
        local = _hook_state.local_part(whole, self._rank, self._world_size, self._keys)
        shared = _hook_state.unpacked(self._keys.take(whole["shared"]))
        try:
            self._runner.load(shared, local, whole["step"])
        except RuntimeError as error:
            raise _hook_state.HookStateError(str(error)) from error
        # Residuals are as large as the gradients they came from; without a scaler to follow, the
        # gradients to come have the scale of the present.
        saved, present = whole["loss_scale"], self._loss_scale
        self._loss_scale = saved
        if self._scaler is None and saved != present:
            self.scale_changed(saved, present)

    def _follow(self, model: torch.nn.Module) -> None:
        if self._scaler is not None:
            self._runner.rescale(self._loss_scale)
            self._before_forward(model, self._follow_scaler)

    def _before_forward(self, model: torch.nn.Module, call: Callable[[], None]) -> None:
        self._removable.append(model.register_forward_pre_hook(_BeforeForward(call)))

    def _follow_scaler(self) -> None:
        scale = self._scaler.get_scale()
        if scale != self._loss_scale:
            self.scale_changed(self._loss_scale, scale)


class _BeforeForward:
    """In a model's copies it does nothing: they have no hook."""

    def __init__(self, call: Callable[[], None] | None = None) -> None:
        self._call = call

    def __call__(self, *_: Any) -> None:
        if self._call is not None:
            self._call()

    def __reduce__(self) -> tuple[type[_BeforeForward], tuple[()]]:
        return _BeforeForward, ()


def attach(
    ddp: DistributedDataParallel | FSDPModule,
    hook: HookOptions,
    *,
    scaler: Any = None,
    threads: int = 1,
    replicas: ProcessGroup | None = None,
) -> Attached:
    """Let a hook in C++ reduce the gradients of ``ddp``, beside its backward and without the GIL.

    >>> ddp = DistributedDataParallel(model)
    >>> hook = q7x2.attach(ddp, q7x2.PowerSGD(rank=4))

    All ranks of the model's process group call it, with the same hook, before the first backward.
    It works on any backend: the group may be of Gloo, or of NCCL, which is not tested.

    Args:
        ddp: The model; or one that ``fully_shard`` (FSDP2) shards over a part of the ranks, a mesh
            of one dimension, while ``replicas`` hold the same shards.
        hook: The algorithm and its options: :class:`PowerSGD`, :class:`Quantize`, :class:`TopK`,
            :class:`OneBit`, :class:`SignSGD`, :class:`Allreduce`, or several of them in
            :class:`Compose`.
        scaler: The ``torch.amp.GradScaler`` of the training, so that residuals follow the loss
            scale. Steps that it skips leave no trace in the hook's state, with or without this.
        threads: Of the hook's tensor operations. The same on all ranks: another number may round
            differently.
        replicas: Of an FSDP2 model: the ranks over which the hook is to average gradients that FSDP
            has reduced to shards.

    Raises:
        RuntimeError: The model has a hook already.
        TypeError: ``ddp`` is neither a DistributedDataParallel nor an FSDPModule, or ``hook`` or
            ``scaler`` not what they should be.
        ValueError: ``replicas`` is missing, or one too many; FSDP does all reductions itself; ranks
            attach different hooks; or parameters are complex, which only :class:`Allreduce` takes,
            or were frozen after DDP had been made.
    """
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if isinstance(hook, type) or not hasattr(hook, "factory"):
        raise TypeError(f"attach needs a hook, such as q7x2.PowerSGD(rank=4), got {hook!r}")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    if isinstance(ddp, FSDPModule):
        from q7x2._attach_fsdp import attach_fsdp

        return attach_fsdp(ddp, hook, replicas, scaler, threads)
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(f"attach needs a DistributedDataParallel, got {type(ddp).__name__}")
    if replicas is not None:
        raise ValueError("replicas are for FSDP2; a DistributedDataParallel has its process group")
    group = ddp.process_group
    if group not in dist.distributed_c10d._world.pg_map:
        raise ValueError(
            "attach needs a group that torch.distributed knows, made by init_process_group or "
            "new_group"
        )
    parameters = reduced_parameters(ddp)
    runner = make_runner(hook, group, parameters, threads)
    _register(ddp, runner, hook)
    rank, world_size = _place_in(group)
    attached = Attached(
        runner, hook, parameters, rank, world_size, scaler, part=part_of(group), threads=threads
    )
    attached._follow(ddp)
    return attached


def _register(ddp: DistributedDataParallel, runner: Any, hook: HookOptions) -> None:
    runner.register(ddp.reducer)
    assert ddp.logger is not None
    ddp.logger._set_comm_hook_name(f"q7x2.{type(hook).__name__}")


def _place_in(group: ProcessGroup) -> tuple[int, int]:
    """This rank's number in the group, and the number of ranks."""
    import torch.distributed as dist

    return dist.get_rank(group), dist.get_world_size(group)


def reduced_parameters(ddp: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    """Those that DDP reduces, by name."""
    if ddp._use_python_reducer:
        raise ValueError(
            "DDP's Python reducer takes no hook: set torch._dynamo.config.optimize_ddp to another "
            "value than 'python_reducer' before the DistributedDataParallel is made"
        )
    parameters = [
        (name, p)
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and name not in ddp.parameters_to_ignore
    ]
    reduced = ddp._get_ddp_logging_data()["num_parameter_tensors"]  # type: ignore[no-untyped-call]
    if len(parameters) != reduced:
        raise ValueError(
            f"DDP reduces {reduced} parameters, of which {len(parameters)} need gradients now: "
            "attach the hook before you freeze parameters of a DistributedDataParallel"
        )
    return parameters


def part_of(group: ProcessGroup) -> str | None:
    """Of the job, in the keys of state; see :class:`_hook_state.Keys`. The group of rank 0, which
    may be all ranks, has plain keys, so its size may change."""
    import torch.distributed as dist

    first = min(dist.get_process_group_ranks(group))
    return f"group_{first}" if first > 0 else None


def _check_agreement(
    hook: HookOptions,
    group: ProcessGroup,
    parameters: list[tuple[str, torch.Tensor]],
    threads: int,
    step: int,
) -> None:
    """Raises ValueError, on all ranks, where one attaches what another does not."""
    import torch.distributed as dist

    mine = [repr(hook), f"threads={threads}", f"step={step}"]
    mine += [f"{name} of shape {list(p.shape)}, {p.dtype}" for name, p in parameters]
    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, mine, group)
    for rank, its in enumerate(everybody):
        for a, b in itertools.zip_longest(everybody[0], its):
            if a != b:
                raise ValueError(
                    "all ranks must attach the same hook to the same model, but rank 0 has "
                    f"{a or 'nothing more'} where rank {rank} of the group has "
                    f"{b or 'nothing more'}"
                )


def make_runner(
    hook: HookOptions,
    group: ProcessGroup | None,
    parameters: list[tuple[str, torch.Tensor]],
    threads: int = 1,
    are_shards: bool = False,
    device: torch.device | None = None,
    serves_many_models: bool = False,
    step: int = 0,
) -> Any:
    """``hook`` at work in a thread of its own, over process groups like ``group``, with its ranks,
    backend, options and timeout; a collective call.

    Args:
        device: Of the gradients; the parameters' if None.
        serves_many_models: With a hook that keeps nothing.
        step: From which the hook goes on, on all ranks.
    """
    import torch.distributed as dist

    from q7x2._extension import load
    from q7x2._hook_options import Allreduce, Job

    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ValueError("no default process group: call init_process_group first")
    if any(p.is_complex() for _, p in parameters) and not isinstance(hook, Allreduce):
        raise ValueError("the parameters are complex, which of all hooks only Allreduce takes")
    _check_agreement(hook, group, parameters, threads, step)
    ranks = dist.get_process_group_ranks(group)
    backend = group._get_backend(device or parameters[0][1].device)
    backend = getattr(backend, "wrapped_pg", backend)
    on_q7x2 = backend.name() == "q7x2"
    config = dist.get_backend_config(group)
    is_all_q7x2 = all(pair.endswith(":q7x2") for pair in config.split(","))
    factory = hook.factory(Job(parameters, on_q7x2, are_shards))
    with _unchecked():
        lanes = [
            dist.new_group(
                ranks,
                timeout=_timeout_of(backend),
                backend=config,
                pg_options=copy.copy(backend.options) if is_all_q7x2 else None,
                # Ranks outside of a smaller group do not come here.
                use_local_synchronization=len(ranks) < dist.get_world_size(),
            )
            for _ in range(hook.lanes(on_q7x2))
        ]
    return load().HookRunner(lanes, parameters, factory, threads, serves_many_models)


def _timeout_of(backend: Any) -> timedelta | None:
    """None: its default, since not every backend tells."""
    try:
        timeout: timedelta = backend.options._timeout
    except (AttributeError, RuntimeError):
        return None
    return timeout


@contextmanager
def _unchecked() -> Iterator[None]:
    """Process groups made in here are not wrapped by TORCH_DISTRIBUTED_DEBUG=DETAIL, which has
    ranks wait for each other where a collective starts: lanes have no order between them."""
    from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

    level = get_debug_level()
    set_debug_level(DebugLevel.OFF)
    try:
        yield
    finally:
        set_debug_level(level)
