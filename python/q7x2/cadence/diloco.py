"""``DiLoCo``: ranks train alone for some steps, then take one outer step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from q7x2._core.ending import Ending
from q7x2._core.renamed import renamed
from q7x2.cadence.diloco_clock import DiLoCoStats
from q7x2.cadence.diloco_options import DiLoCoOptions, QuorumOptions
from q7x2.cadence.diloco_quorum import ByQuorum
from q7x2.cadence.diloco_together import Together
from q7x2.cadence.outer import OuterSGD
from q7x2.late.quorum_messages import Timing
from q7x2.policy.cadence import Interval


@renamed(compressor="codec", every="sync_every")
class DiLoCo(Ending):
    """Low-communication training: ``sync_every`` steps of each rank alone, then one outer step.

    An outer gradient is the change of a rank's weights since the last outer step: weights before
    minus weights after. Their mean over the ranks goes to the outer optimizer, which changes
    the weights that all ranks share (DiLoCo, Douillard et al., 2023, arXiv 2311.08105). One class
    covers local SGD, SlowMo, DiLoCo, Streaming DiLoCo and SparseLoCo; docs/cadence.md has a table
    of their options and papers.

    >>> optimizer = q7x2.cadence.DiLoCo(model, torch.optim.AdamW(model.parameters()), sync_every=30)
    >>> loss_of(model(x), y).backward()
    >>> optimizer.step()  # the inner step; every 30th call is followed by the outer one
    >>> optimizer.zero_grad()

    All ranks of the group make it together, and call :meth:`step` equally often, except with a
    quorum. They start with the weights of rank 0. It is a ``torch.distributed.checkpoint``
    Stateful. Buffers of the model stay local.

    Args:
        model: Its parameters are of float32, bfloat16 or float16. Those that need gradients are
            trained. ``fully_shard`` (FSDP2) may have sharded it over other ranks than those of
            ``group``.
        inner: The optimizer of each rank, over the model's parameters.
        sync_every: Steps between two outer steps of a parameter: an int, or an interval such as
            :class:`FollowBandwidth`, called with :class:`CadenceFacts`.
        outer: The outer optimizer.
        codec: A codec's name, as ``q7x2.all_reduce`` takes it, with error feedback:
            ``"int4"``, or ``"topk:0.025:reselect+int2:minmax:g=64"``. None: float32, over any
            backend.
        residual_decay: What is left of a residual when the next outer gradient is added to it.
        full_precision: Patterns of names of parameters whose outer gradients are never compressed.
        fragments: Parts of the model that take turns within each interval, so that the link is used
            evenly (Streaming DiLoCo).
        overlap: The number of steps that ranks compute while an outer gradient is on the way. Less
            than ``sync_every``.
        blend: The share of the rank's own weights in its weights after an outer step. 0: it takes
            the shared weights, and drops what it has learnt meanwhile. None: 0.5 with overlap, 0
            without.
        inner_state: ``"keep"``: each rank goes on with its inner optimizer's state. ``"average"``:
            tensors of that state, as large as their parameters, are averaged at each outer step, in
            float32; not with overlap.
        edges: Between which ranks messages are compressed, as ``q7x2.all_reduce`` takes it.
        random_seed: The seed of the codec's random numbers.
        quorum: Outer steps wait for no rank in particular, but count the first outer gradients
            (docs/late_workers.md). None: they wait for all ranks.
        group: The default group if None; with a quorum, a q7x2 group with 3 to 62 ranks. Of a
            sharded model: the ranks that hold the same shards, one of each replica. All ranks of a
            replica call everything together.

    Raises:
        ValueError: An option is out of range, ranks have different options or models, a
            a codec is given for a group that has no q7x2 backend, ``group`` has two ranks of a
            replica, or an option or the model does not go with a quorum.
        TypeError: ``model`` is not a module, ``inner`` is not an optimizer, ``outer`` is not an
            :class:`OuterSGD`, or ``quorum`` is not a :class:`QuorumOptions`.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        *,
        sync_every: int | Interval,
        outer: OuterSGD | None = None,
        codec: str | None = None,
        residual_decay: float = 1.0,
        full_precision: Sequence[str] = (),
        fragments: int = 1,
        overlap: int = 0,
        blend: float | None = None,
        inner_state: str = "keep",
        edges: str = "auto",
        random_seed: int = 0,
        quorum: QuorumOptions | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        for name, value, kind in (
            ("model", model, nn.Module),
            ("inner", inner, torch.optim.Optimizer),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {value!r}")
        if not isinstance(quorum, (QuorumOptions, type(None))):
            raise TypeError(f"quorum must be of type QuorumOptions, got {quorum!r}")
        options = DiLoCoOptions(
            sync_every=sync_every,
            outer=OuterSGD() if outer is None else outer,
            codec=codec,
            residual_decay=residual_decay,
            full_precision=full_precision,
            random_seed=random_seed,
            fragments=fragments,
            overlap=overlap,
            blend=(0.5 if overlap else 0.0) if blend is None else blend,
            inner_state=inner_state,
            edges=edges,
        )
        self.inner = inner
        self._training: Together | ByQuorum
        if quorum is None:
            self._training = Together(model, inner, options, group)
        else:
            self._training = ByQuorum(model, inner, options, quorum, group)

    # ---- training -------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None, *, tokens: float | None = None) -> Any:
        """Take an inner step, and what of an outer step is due after it; a collective call.

        If a message fails, it raises on each rank that is affected. The inner step has been taken
        then, and the outer one has not: weights, momentum and residuals are as before it. After
        :meth:`rebind` the next call tries it again. With a quorum the next call tries it again.

        Args:
            closure: Given to the inner optimizer's ``step``.
            tokens: The weight of this step in the mean of the outer gradients. Only with a quorum;
                None: 1.

        Returns:
            What the inner optimizer's ``step`` returns.

        Raises:
            FloatingPointError: An outer gradient has Inf or NaN, on any rank. With a quorum the
                outer step is over then, and all ranks have the shared weights of before.
            RuntimeError: Ranks are at different steps.
            TimeoutError: Too few ranks of a quorum came within the timeout.
            torch.distributed.DistBackendError: A rank died, or another failure of the group.
        """
        return self._training.step(closure, tokens)

    def flush(self) -> None:
        """Apply the outer gradients on their way, for example before a validation.

        A collective call. Raises the same as :meth:`step`. With a quorum none is on its way
        between two steps.
        """
        self._training.flush()

    def finish(self) -> None:
        """:meth:`flush` at the end of the training; all ranks call it.

        With a quorum it waits for all ranks, helps those that are behind, and all have the same
        weights if each calls it after its last outer step. Later inner steps stay local.
        """
        self._training.finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as the inner optimizer does with ``set_to_none``."""
        self.inner.zero_grad(set_to_none)

    @property
    def steps(self) -> int:
        """Inner steps so far. Without a quorum, those before a loaded state are included."""
        return self._training.steps

    @property
    def outer_steps(self) -> int:
        """Outer steps so far, those before a loaded state included.

        With fragments, those of the fragment that has the fewest. With a quorum it grows by more
        than 1 at once on a rank that was far behind.
        """
        return self._training.outer_steps

    @property
    def interval(self) -> int:
        """The steps of the current interval of this rank."""
        return self._training.interval

    @property
    def timing(self) -> Timing:
        """How long this rank waits for a quorum. Its seconds may be changed between two steps.

        Without a quorum it raises RuntimeError.
        """
        return self._training.timing

    @property
    def shared_weights(self) -> dict[str, Tensor]:
        """Copies of the weights after the last outer step, float32, equal on all ranks, by name.

        If the model is sharded, they are this rank's shards.
        """
        return self._training.shared_weights

    @property
    def contributes(self) -> bool:
        """Whether this rank's outer gradients count; False until a rank that joined has one."""
        return self._training.contributes

    @property
    def residuals(self) -> dict[str, Tensor]:
        """Copies of what this rank has not sent yet, float32, by name; empty without a codec."""
        return self._training.residuals

    @property
    def stats(self) -> DiLoCoStats:
        """What it has done on this rank since it was made."""
        return self._training.stats

    # ---- members and state ----------------------------------------------------------------------

    def rebind(self, group: ProcessGroup | None = None) -> None:
        """Go on with another process group: fewer ranks after a failure, or also new ones.

        All ranks of ``group`` call it together; a new one makes its :class:`DiLoCo` over ``group``
        instead. Weights, momentum and residuals go on. Outer gradients on the way are rolled back,
        and sent again after the next step. A rank that is behind takes what it lacks from the one
        that is furthest; a new rank takes the shared weights and trains on, and counts in means
        from its second outer step on.

        Args:
            group: What ``dist.new_group``, ``dist.shrink_group`` or ``q7x2.reconfigure`` has
                returned. None: the default group.

        Raises:
            ValueError: The ranks have different options or models.
            RuntimeError: There is a quorum: make a new one, and load the state.
        """
        self._training.rebind(group)

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that goes on, on this rank; waits for outer gradients on the way.

        Save it on each rank, beside the model's and the inner optimizer's state. ``"shared"`` is
        equal on all ranks, ``"local"`` is this rank's. Loaded on as many ranks, also within an
        interval, training goes on with the bits of one that was not stopped.

        With a quorum save it right after an outer step. Its weights and momentum are equal on all
        ranks, and a training goes on with those of rank 0.
        """
        return self._training.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Take over what :meth:`state_dict` gave; load the model and the inner optimizer too.

        With a quorum all ranks call it, before their first step; the model takes the shared
        weights.

        Args:
            state: This rank's, or, without a quorum, a list with those of all ranks that saved. A
                list may come from another number of ranks: each rank then takes an equal share of
                the residuals.

        Raises:
            HookStateError: It is of another model, of other options, or of another number of ranks.
                Nothing has changed then.
            ValueError: With a quorum, it is of another outer step than on rank 0.
            RuntimeError: With a quorum, this rank has taken an outer step.
        """
        self._training.load_state_dict(state)
