"""``Q7X2_ATTACH``: the models of a job get a hook, without a line in its script.

The first group of q7x2 in a process starts it. From then on each DistributedDataParallel, and each
model that ``fully_shard`` or ``replicate()`` takes, gets the hook in its first forward that
computes gradients. By then a script that attaches a hook of its own has done so, and keeps it.
Models on other backends stay as they are.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from q7x2._attach import attach
from q7x2._core.backends import is_on_q7x2
from q7x2._hook_text import parse_hook
from q7x2.fsdp.options import Sharded
from q7x2.fsdp.replica_mesh import replica_group_of
from q7x2.fsdp.torch_internals import param_groups, process_group_of, watch_sharding
from q7x2.hooks.composable import group_of, is_hidden_ddp, watch_replication
from q7x2.hooks.options import Quantize
from q7x2.hooks.runner import place_in

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

    from q7x2.hooks.attached import Attached
    from q7x2.hooks.options import HookOptions

VARIABLE = "Q7X2_ATTACH"


class ModelFollower:
    """Attaches one hook to each model that is made from now on.

    Args:
        text: A hook; or the name of a codec, which :class:`q7x2.Quantize` takes for
            replicas, and the gradients of :class:`q7x2.Sharded` for a model that is only sharded.

    Raises:
        ValueError: ``text`` is neither.
    """

    def __init__(self, text: str) -> None:
        try:
            self._hook = parse_hook(text)
        except ValueError as error:
            raise ValueError(f"{VARIABLE}: {error}") from None
        self._text = text
        self._attached: dict[str, Attached] = {}
        self._unclaimed: dict[str, Any] = {}  # state whose model has not begun to train
        self._has_loaded = False
        self._parts: WeakSet[torch.nn.Module] = WeakSet()

    def start(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        DDP: Any = DistributedDataParallel
        init = DDP.__init__

        @functools.wraps(init)
        def follow(ddp: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
            init(ddp, *arguments, **options)
            if not is_hidden_ddp(ddp):
                self._wait_for_training(ddp, self._attach_to_ddp)

        DDP.__init__ = follow
        watch_replication(lambda model: self._wait_for_training(model, self._attach_to_replicate))
        watch_sharding(lambda module: self._wait_for_training(module, self._attach_to_shards))

    def state_dict(self) -> dict[str, Any]:
        """The state of all hooks, by model, in the order of the models' first steps."""
        return {key: attached.state_dict() for key, attached in self._attached.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each hook its state; one whose model has not begun to train gets it then."""
        self._has_loaded = True
        for key, value in state.items():
            if key in self._attached:
                self._attached[key].load_state_dict(value)
            else:
                self._unclaimed[key] = value

    def _wait_for_training(
        self, model: torch.nn.Module, begin: Callable[[Any, bool], None]
    ) -> None:
        """Call ``begin`` before the model's first forward that computes gradients.

        It is also told whether somebody has loaded a checkpoint into the model until then.
        """
        were_loaded = False

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def before_forward(module: torch.nn.Module, _: Any) -> None:
            if torch.is_grad_enabled():
                forward.remove()
                loading.remove()
                begin(module, were_loaded)

        def after_loading(*_: Any) -> None:
            nonlocal were_loaded
            were_loaded = True

        # Before FSDP's own, which gathers weights.
        forward = model.register_forward_pre_hook(before_forward, prepend=True)
        loading = model.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            after_loading
        )

    def _attach_to_ddp(self, ddp: DistributedDataParallel, were_loaded: bool) -> None:
        module = getattr(ddp.module, "_orig_mod", ddp.module)  # torch.compile wraps it
        name = f"DistributedDataParallel of {type(module).__name__}"
        self._attach(ddp, name, ddp.process_group, Quantize, were_loaded)

    def _attach_to_replicate(self, model: torch.nn.Module, were_loaded: bool) -> None:
        """``model`` is one of the ``replicate()`` that makes a DistributedDataParallel of it."""
        self._attach(model, type(model).__name__, group_of(model), Quantize, were_loaded)

    def _attach_to_shards(self, model: torch.nn.Module, were_loaded: bool) -> None:
        """``model`` is the outermost module: those inside it run later, and share its hook."""
        if model in self._parts:
            return
        self._parts.update(model.modules())
        groups = [group for _, _, group in param_groups(model)]
        if groups:
            name = type(model).__name__
            self._attach(model, name, process_group_of(groups[0]), _hook_for(model), were_loaded)

    def _attach(
        self,
        model: Any,
        name: str,
        group: ProcessGroup,
        hook_of_codec: Callable[[str], HookOptions | Sharded],
        were_loaded: bool,
    ) -> None:
        if not _travels_here(model, group):
            return
        rank, world_size = place_in(group)
        hook = hook_of_codec(self._hook) if isinstance(self._hook, str) else self._hook
        try:
            attached = attach(model, hook)
        except RuntimeError as error:
            if "already" not in str(error):
                raise
            if rank == 0:
                _say(f"{name} keeps the hook that it has")
            return
        except (TypeError, ValueError) as error:
            _warn(f"{name} gets no hook: {error}")
            return
        key = f"{len(self._attached)}: {name}"
        self._attached[key] = attached
        if key in self._unclaimed:
            attached.load_state_dict(self._unclaimed.pop(key))
        elif were_loaded or self._has_loaded:
            _warn(
                f"{name} continues from a checkpoint that has no state of its hook, so what "
                "earlier steps left to send is lost: save q7x2.state_dict() as well"
            )
        if rank == 0:
            _say(f"{name} on {world_size} ranks now has the hook {self._text}")


def _hook_for(model: torch.nn.Module) -> Callable[[str], HookOptions | Sharded]:
    """What the name of a codec means for a model of FSDP2."""
    # With replicas, of which FSDP2 has no codec, it is that of the messages between them.
    has_replicas = any(replica_group_of(group) is not None for _, _, group in param_groups(model))
    return Quantize if has_replicas else Sharded


def _travels_here(model: torch.nn.Module, group: ProcessGroup) -> bool:
    return is_on_q7x2(group, next(model.parameters()).device)


def _warn(text: str) -> None:
    warnings.warn(f"q7x2: {VARIABLE}: {text}", stacklevel=2)


def _say(text: str) -> None:
    print(f"q7x2: {VARIABLE}: {text}", file=sys.stderr, flush=True)


@functools.cache
def follow_models() -> ModelFollower:
    """What attaches the hook of ``Q7X2_ATTACH``; the first call of a process starts it.

    Raises:
        ValueError: The variable's text is no hook.
    """
    follower = ModelFollower(os.environ[VARIABLE])
    follower.start()
    return follower


def state_dict() -> dict[str, Any]:
    """Return the state of all hooks that ``Q7X2_ATTACH`` has attached, for a checkpoint.

    Each rank has state of its own: save it per rank, or with ``torch.distributed.checkpoint``.
    Without the variable it is empty.

    >>> torch.save({"model": model.state_dict(), "hooks": q7x2.state_dict()}, path_of_rank)
    """
    return follow_models().state_dict() if os.environ.get(VARIABLE) else {}


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Give the hooks that ``Q7X2_ATTACH`` attaches the state that :func:`state_dict` returned.

    It may be called before the models exist. Models are told apart by the order of their first
    training steps.

    Args:
        state: What :func:`state_dict` returned on the same rank.

    Raises:
        ValueError: ``state`` has hooks, but ``Q7X2_ATTACH`` is not set.
        q7x2.hooks.HookStateError: It is the state of another hook or model.
    """
    if os.environ.get(VARIABLE):
        follow_models().load_state_dict(state)
    elif state:
        raise ValueError(f"the state has {len(state)} hooks, but {VARIABLE} is not set")
