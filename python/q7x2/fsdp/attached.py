"""``AttachedSharded``: compressed FSDP2 at work on one model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from q7x2._core import hook_state
from q7x2._core.backward import without_gradient_sync
from q7x2.fsdp.attach import ShardedModel
from q7x2.fsdp.options import ShardedStats
from q7x2.fsdp.replica_mesh import HybridMesh
from q7x2.fsdp.traffic import Traffic, without_weights
from q7x2.hooks.attached import Attached
from q7x2.policy.driver import PolicyDriver, check_same_policies

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from q7x2.fsdp.options import Sharded
    from q7x2.hooks.options import HookOptions
    from q7x2.policy.policy import Policy


def attach_sharded(
    model: Any,
    hook: Sharded | HookOptions,
    replica_group: ProcessGroup | None,
    scaler: Any,
    threads: int,
    policies: Sequence[Policy],
) -> AttachedSharded:
    """See :func:`q7x2.attach`."""
    mesh = HybridMesh(model)
    try:
        attached = _attach(model, hook, mesh.checked(replica_group), scaler, threads, policies)
    except BaseException:
        mesh.remove()
        raise
    attached._removable.append(mesh)
    return attached


def _attach(
    model: Any,
    hook: Sharded | HookOptions,
    replica_group: ProcessGroup | None,
    scaler: Any,
    threads: int,
    policies: Sequence[Policy],
) -> AttachedSharded:
    sharded = ShardedModel(model, hook, replica_group)
    check_same_policies(policies, *sharded.process_groups)
    if policies:
        sharded.check_steered()
    traffic = sharded.connect(scaler is not None, threads, is_steered=bool(policies))
    driver = _driver(policies, traffic)
    rank, world_size = sharded.place
    attached = AttachedSharded(
        traffic,
        hook,  # type: ignore[arg-type]
        sharded.parameters,
        rank=rank,
        world_size=world_size,
        scaler=scaler,
        part=sharded.part,
        threads=threads,
    )
    attached._model = model
    attached._follow(model)
    attached._notice_loads(model)
    if driver is not None:
        attached._steer(traffic)
        attached._obey(model, driver)
    return attached


def _driver(policies: Sequence[Policy], traffic: Traffic) -> PolicyDriver | None:
    """At work on the traffic, which is detached if it cannot do what the policies decide."""
    if traffic.steering is None:
        return None
    try:
        driver = PolicyDriver(policies, traffic.steering.parameters)
        driver.check(traffic)
        driver.start(traffic, 0)
    except ValueError:
        traffic.detach()
        raise
    return driver


class AttachedSharded(Attached):
    """Compressed FSDP2 at work on one model; made by :func:`attach`."""

    _runner: Traffic

    @property
    def stats(self) -> ShardedStats:
        return ShardedStats(**self._runner.stats())

    def refresh(self) -> None:
        """Send all weights whole with their next all-gather.

        This is needed only after weights were changed on purpose beside an optimizer's step, by a
        little. Loaded weights, and changes in place at other times, are noticed.
        """
        self._runner.refresh()

    def rebind(self, model: Any, *, replica_group: ProcessGroup | None = None) -> None:
        """Compress the traffic of ``model`` from now on: the same model, sharded over other ranks.

        FSDP2 cannot move a model to another process group. So make a group of the ranks that are
        left, shard the model anew over it, load its weights, and give it to this method on all of
        them. Each rank has residuals of the whole model; they go on as contributions to the mean.
        What a rank that is gone kept is lost. Weights are sent whole once, because ranks may have
        received different parts of the last ones.

        Args:
            model: An FSDPModule without a hook. Its names and shapes are those of the old model.
            replica_group: As in :func:`attach`, if the hook has replicas.

        Raises:
            ValueError: The ranks do not go on from the same step, have different hooks, or the
                model is another one.
            RuntimeError: ``model`` has a hook already.
            TypeError: ``model`` is no FSDPModule.
        """
        from torch.distributed.fsdp import FSDPModule

        if not isinstance(model, FSDPModule):
            raise TypeError(f"rebind needs an FSDPModule, got {type(model).__name__}")
        shared, local, step = self._runner.save()
        sharded = ShardedModel(model, self.options, replica_group)
        if hook_state.shapes_of(sharded.parameters) != self._shapes:
            raise ValueError("rebind needs the same model: names or shapes of parameters differ")
        traffic = sharded.connect(
            self._scaler is not None, self._threads, step, is_steered=self._driver is not None
        )
        if self._driver is not None:
            self._steer(traffic)
            self._driver.start(traffic, step)
        self._model = model
        traffic.load(without_weights(shared), hook_state.without_lost_ranks(local), step)
        self._move(cast("torch.nn.Module", model), traffic, sharded.place, sharded.part)
        self._notice_loads(model)

    def _steer(self, traffic: Traffic) -> None:
        assert traffic.steering is not None
        traffic.steering.scale = lambda: self._loss_scale

    def _unreduced(self) -> AbstractContextManager[None]:
        return without_gradient_sync(self._model)

    def _mean(self, loss: float) -> float:
        assert self._runner.steering is not None
        return self._runner.steering.mean(loss)

    def _notice_loads(self, model: Any) -> None:
        """Weights that are loaded from now on are sent whole."""
        self._removable.append(
            model.register_load_state_dict_post_hook(lambda *_: self._runner.refresh())
        )
