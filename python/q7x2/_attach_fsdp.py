"""``attach`` for models that FSDP2 shards: their collectives, compressed and not waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from q7x2._extension import load
from q7x2._fsdp_gather import CastGather, DifferenceGather, Gather
from q7x2._fsdp_layout import Layout, pieces_of
from q7x2._fsdp_messages import CodedReduceScatter
from q7x2._fsdp_options import BF16, NONE, Sharded
from q7x2._fsdp_reductions import Member
from q7x2._fsdp_scatter import Residual, Scatter
from q7x2._fsdp_torch import check_entry_points, install, param_groups, shard_group
from q7x2._fsdp_traffic import AttachedSharded, Part, Traffic
from q7x2._groups import ranks_of
from q7x2._hook_base import check_patterns
from q7x2._hook_runner import _check_agreement, make_runner, part_of, place_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from q7x2._hook_options import HookOptions

_Named = list[tuple[str, torch.Tensor]]


def attach_fsdp(
    model: Any,
    options: Sharded | HookOptions,
    replicas: ProcessGroup | None,
    scaler: Any,
    threads: int,
) -> AttachedSharded:
    """See :func:`q7x2.attach`. A hook without :class:`Sharded` is the one between replicas."""
    asked: Any = options
    if not isinstance(options, Sharded):
        options = Sharded(gradients=NONE, weights=NONE, replicas=options)
    groups = list(param_groups(model))
    names = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    _check(groups, names, options, replicas)
    process_groups = [shard_group(group) for _, _, group in groups]
    widest = max(process_groups, key=dist.get_world_size)
    whole = _whole_parameters(groups, names)
    check_patterns(options.full_precision, whole, "full_precision")
    _check_agreement(asked, widest, whole, threads, step=0)

    shards = _shards(groups)
    reduced = [shard for shard in shards if shard is not None]
    runner = None
    if options.replicas is not None:
        runner = make_runner(
            options.replicas,
            replicas,
            reduced,
            threads,
            are_shards=True,
            device=groups[0][2].device,
            may_skip=scaler is not None,
        )
    agreeing = [widest] if replicas is None else [widest, replicas]
    traffic = Traffic(runner, agreeing, groups[0][2].device, may_skip=scaler is not None)
    for index, (name, module, group) in enumerate(groups):
        position = sum(shard is not None for shard in shards[:index])
        member = Member(traffic.reductions, name, position, group)
        traffic.parts.append(_part(module, member, index, names, options, traffic))

    rank, world_size = place_in(widest if replicas is None else replicas)
    parameters = whole if options.compresses_shards else []
    attached = AttachedSharded(
        traffic,
        asked,
        parameters if replicas is None else parameters + reduced,
        rank,
        world_size,
        scaler,
        part=part_of(widest)
        if replicas is None
        else f"shard_{groups[0][2].mesh_info.shard_mesh_rank}",
        threads=threads,
    )
    attached._follow(model)
    attached._removable.append(
        model.register_load_state_dict_post_hook(lambda *_: traffic.refresh())
    )
    return attached


def _check(
    groups: list[tuple[str, Any, Any]],
    names: dict[int, str],
    options: Sharded,
    replicas: ProcessGroup | None,
) -> None:
    """Raises what `attach` says it raises."""
    if options.replicas is not None and replicas is None:
        raise ValueError(
            "attach needs replicas for an FSDP2 model: the process group of the ranks that hold "
            "the same shards; q7x2.Sharded() compresses the shards themselves"
        )
    if options.replicas is None and replicas is not None:
        raise ValueError(
            "replicas need a hook that averages between them: q7x2.Sharded(replicas=...)"
        )
    if not any(p.sharded_param.requires_grad for _, _, g in groups for p in g.fsdp_params):
        raise ValueError("the model has no sharded parameters that need gradients")
    for name, _, group in groups:
        check_entry_points(group)
        if isinstance(group._all_gather_comm, Gather):
            raise RuntimeError(f"FSDP module {name!r} has a hook of q7x2 already")
        world = ranks_of(shard_group(group))
        if options.edges != "auto" and not _is_q7x2(shard_group(group), group.device):
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


def _is_q7x2(group: ProcessGroup, device: torch.device) -> bool:
    backend = group._get_backend(device)
    name: str = getattr(backend, "wrapped_pg", backend).name()
    return name == "q7x2"


def _whole_parameters(groups: list[tuple[str, Any, Any]], names: dict[int, str]) -> _Named:
    """Of each parameter a tensor of its whole shape, without memory."""
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


def _part(
    module: Any,
    member: Member,
    index: int,
    names: dict[int, str],
    options: Sharded,
    traffic: Traffic,
) -> Part:
    """The collectives of one param group, installed."""
    group = member.group
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
            layout_of(options.weights, group.fsdp_params),
            make_codec(options.weights),
            options,
            reductions=lambda: member.count,
            steps=lambda: traffic.step,
            index=index,
        )
    else:
        gather = CastGather(*facts) if options.weights == BF16 else Gather(*facts)
    parameters = [names[id(p.sharded_param)] for p in group.fsdp_params]
    part = Part(member.name, parameters, gather)
    if world_size > 1:
        layout = layout_of(options.gradients, member.trained)
        coded = None
        if layout.coded_numel:
            part.residual = Residual(layout, options.use_error_feedback, traffic.may_skip)
            coded = CodedReduceScatter(
                process_group, group.device, options.gradients, options.edges, options.random_seed
            )
        part.scatter = Scatter(member, layout, coded, part.residual, options.start_iter, index)
    part.restore = install(
        group,
        all_gather=gather,
        reduce_scatter=part.scatter,
        all_reduce=member.reduce_alone if world_size == 1 and options.replicas else None,
    )
    return part
