"""FSDP2 models as hooks see them: checked, and given collectives that are compressed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2._core.backends import is_on_q7x2
from q7x2._core.extension import load
from q7x2._core.groups import ranks_of
from q7x2.fsdp.gather import CastGather, DifferenceGather, Gather
from q7x2.fsdp.layout import Layout, pieces_of
from q7x2.fsdp.messages import CodedReduceScatter
from q7x2.fsdp.options import BF16, NONE, Sharded
from q7x2.fsdp.reductions import Member
from q7x2.fsdp.scatter import Residual, Scatter
from q7x2.fsdp.steering import Steering
from q7x2.fsdp.torch_internals import check_entry_points, install, param_groups, shard_group
from q7x2.fsdp.traffic import Part, Traffic
from q7x2.hooks.base import check_patterns
from q7x2.hooks.options import Allreduce
from q7x2.hooks.runner import check_same_hook, make_runner, part_of, place_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2._C import HookRunner
    from q7x2.hooks.options import HookOptions

_Named = list[tuple[str, torch.Tensor]]


class ShardedModel:
    """What a hook is to be attached to, checked: an FSDP2 model and the ranks that reduce it.

    Args:
        asked: The hook. One without :class:`Sharded` is the hook between replicas.
        replica_group: The process group of the ranks that hold the same shards; None: there is one
            replica.

    Raises:
        ValueError: As :func:`q7x2.attach`.
        RuntimeError: The model has a hook already.

    Attributes:
        parameters: All that state is kept of, by name, as tensors without memory.
        place: This rank's number among the ranks that have state of their own, and how many those
            are.
        part: The part of the job, in the keys of state; see :class:`_hook_state.Keys`.
    """

    def __init__(
        self, model: Any, asked: Sharded | HookOptions, replica_group: ProcessGroup | None
    ) -> None:
        self.model, self.asked, self.replica_group = model, asked, replica_group
        self.options = (
            asked
            if isinstance(asked, Sharded)
            else Sharded(gradients=NONE, weights=NONE, replica_hook=asked)
        )
        self.groups = list(param_groups(model))
        self.names = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
        _check(self.groups, self.names, self.options, replica_group)
        self.widest = max((shard_group(g) for _, _, g in self.groups), key=dist.get_world_size)
        self.whole = _whole_parameters(self.groups, self.names)
        check_patterns(self.options.full_precision, self.whole, "full_precision")
        self.shards = _shards(self.groups)
        self.parameters = self.whole if self.options.compresses_shards else []
        if replica_group is None:
            self.place = place_in(self.widest)
            self.part = part_of(self.widest)
        else:
            self.parameters = self.parameters + self._reduced
            self.place = place_in(replica_group)
            self.part = f"shard_{self.groups[0][2].mesh_info.shard_mesh_rank}"

    @property
    def _reduced(self) -> _Named:
        """What the hook between replicas reduces."""
        return [shard for shard in self.shards if shard is not None]

    @property
    def process_groups(self) -> list[ProcessGroup]:
        """Those of all ranks: of the shards, and of the replicas, if there are any."""
        return [self.widest] if self.replica_group is None else [self.widest, self.replica_group]

    def check_steered(self) -> None:
        """Raise ValueError if there is nothing that policies could decide about."""
        if self.options.gradients == NONE and not self._steers_replicas:
            raise ValueError(
                "policy decides how gradients are compressed, but this hook compresses none: "
                "expected gradients of q7x2.Sharded to be a codec, or a hook between replicas that "
                f"compresses, got {self.asked!r}"
            )

    @property
    def _steers_replicas(self) -> bool:
        return not isinstance(self.options.replica_hook, (Allreduce, type(None)))

    def _steering(self, runner: HookRunner | None, device: torch.device) -> Steering:
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        return Steering(
            self.options,
            []
            if self.options.gradients == NONE
            else [(name, tensor) for name, tensor in self.whole if name in trained],
            self._reduced if self._steers_replicas else [],
            runner if self._steers_replicas else None,
            self.process_groups,
            device,
        )

    def connect(
        self, may_skip: bool, threads: int, step: int = 0, is_steered: bool = False
    ) -> Traffic:
        """Install the compressed collectives; a collective call of all ranks.

        Args:
            may_skip: A gradient scaler skips steps.
            threads: Threads per tensor operation of the hook between replicas.
            step: From which the hook goes on, on all ranks.
            is_steered: Policies decide how gradients travel.
        """
        check_same_hook(self.asked, self.widest, self.whole, threads, step)
        device = self.groups[0][2].device
        runner = None
        if self.options.replica_hook is not None:
            runner = make_runner(
                self.options.replica_hook,
                self.replica_group,
                self._reduced,
                threads=threads,
                are_shards=True,
                device=device,
                may_skip=may_skip,
                step=step,
            )
        steering = self._steering(runner, device) if is_steered else None
        traffic = Traffic(runner, self.process_groups, device, may_skip, steering)
        for index, (name, module, group) in enumerate(self.groups):
            position = sum(shard is not None for shard in self.shards[:index])
            member = Member(traffic.reductions, name, position, group)
            traffic.parts.append(self._part(module, member, index, traffic))
        return traffic

    def _part(self, module: Any, member: Member, index: int, traffic: Traffic) -> Part:
        """The collectives of one param group, installed."""
        options, names, group = self.options, self.names, member.group
        process_group = shard_group(group)
        world_size = dist.get_world_size(process_group)
        make_codec = load().Codec

        def layout_of(codec: str, params: list[Any]) -> Layout:
            made = None if codec in (NONE, BF16) else make_codec(codec)
            return Layout(pieces_of(params, names, made, options.compresses), world_size)

        facts = (group, process_group, traffic.counts, lambda: traffic.before_forward(module))
        gather: Gather
        if options.sends_differences:
            gather = DifferenceGather(
                *facts,
                layout=layout_of(options.weights, group.fsdp_params),
                codec=make_codec(options.weights),
                options=options,
                reductions=lambda: member.count,
                steps=lambda: traffic.step,
                index=index,
            )
        else:
            gather = CastGather(*facts) if options.weights == BF16 else Gather(*facts)
        parameters = [names[id(p.sharded_param)] for p in group.fsdp_params]
        part = Part(member.name, parameters, gather)
        if world_size > 1:

            @functools.cache
            def coders(codec: str) -> tuple[Layout, CodedReduceScatter | None]:
                layout = layout_of(codec, member.trained)
                if not layout.coded_numel:
                    return layout, None
                return layout, CodedReduceScatter(
                    process_group, group.device, codec, options.edges, options.random_seed
                )

            layout, coded = coders(options.gradients)
            if coded is not None:
                part.residual = Residual(layout, options.use_error_feedback, traffic.may_skip)
            replicas = 1 if self.replica_group is None else dist.get_world_size(self.replica_group)
            part.scatter = Scatter(
                member,
                codec=options.gradients,
                coders=coders,
                memory=part.residual,
                start_iter=options.start_iter,
                random_index=index,
                replicas=replicas,
            )
            if traffic.steering is not None and coded is not None:
                traffic.steering.follow(part.scatter)
        part.restore = install(
            group,
            all_gather=gather,
            reduce_scatter=part.scatter,
            all_reduce=member.reduce_alone if world_size == 1 and options.replica_hook else None,
        )
        return part


def _check(
    groups: list[tuple[str, Any, Any]],
    names: dict[int, str],
    options: Sharded,
    replica_group: ProcessGroup | None,
) -> None:
    """Raises what `attach` says it raises."""
    if options.replica_hook is not None and replica_group is None:
        raise ValueError(
            "attach needs replica_group for an FSDP2 model: the process group of the ranks that "
            "hold the same shards; q7x2.Sharded() compresses the shards themselves"
        )
    if options.replica_hook is None and replica_group is not None:
        raise ValueError(
            "replica_group needs a hook that averages over it: q7x2.Sharded(replica_hook=...)"
        )
    if not any(p.sharded_param.requires_grad for _, _, g in groups for p in g.fsdp_params):
        raise ValueError("the model has no sharded parameters that need gradients")
    for name, _, group in groups:
        check_entry_points(group)
        if isinstance(group._all_gather_comm, Gather):
            raise RuntimeError(
                f"FSDP module {name!r} has a hook of q7x2 already: call its detach() before you "
                "attach another one"
            )
        world = ranks_of(shard_group(group))
        if options.edges != "auto" and not is_on_q7x2(shard_group(group), group.device):
            raise ValueError(
                f"edges are chosen by q7x2's own groups: expected 'auto', got {options.edges!r}"
            )
        for parameter in group.fsdp_params:
            _check_parameter(names[id(parameter.sharded_param)], parameter, options, len(world))


def _check_parameter(name: str, parameter: Any, options: Sharded, world_size: int) -> None:
    if not options.compresses_shards:
        return
    if parameter.is_dtensor:
        raise ValueError(
            f"parameter {name!r} is distributed over another mesh as well (tensor parallel): "
            "compressed FSDP2 takes parameters that only FSDP shards"
        )
    if parameter.sharded_param.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"parameter {name!r}: expected float32, bfloat16 or float16, got "
            f"{parameter.sharded_param.dtype}"
        )
    if hasattr(parameter.sharded_param.detach().to_local(), "fsdp_pre_all_gather"):
        raise ValueError(
            f"parameter {name!r} is gathered by a tensor subclass of its own (fsdp_pre_all_gather)"
        )


def _whole_parameters(groups: list[tuple[str, Any, Any]], names: dict[int, str]) -> _Named:
    """For each parameter a tensor of its whole shape, without memory."""
    return [
        (
            names[id(p.sharded_param)],
            torch.empty(p._orig_size, dtype=p.sharded_param.dtype, device="meta"),
        )
        for _, _, group in groups
        for p in group.fsdp_params
    ]


def _shards(groups: list[tuple[str, Any, Any]]) -> list[tuple[str, torch.Tensor] | None]:
    """What the hook between replicas reduces: of each param group one vector; None: nothing."""
    numels = [
        sum(
            p.padded_sharded_param_size.numel()
            for p in group.fsdp_params
            if p.sharded_param.requires_grad
        )
        for _, _, group in groups
    ]
    return [
        (name, torch.empty(numel, device="meta")) if numel else None
        for (name, _, _), numel in zip(groups, numels, strict=True)
    ]
