"""The compiled module. ``q7x2._core.extension.load`` loads it, with UCX in front of it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Backend, GradBucket, ProcessGroup, ReduceOp, Store, Work

from q7x2._core.runner import StepFacts

_HookState = dict[str, dict[str, Tensor]]

WORTH_MORE_LOSS: float
"""``edges="auto"``: the fewest lossy edges with at most this many times the shortest time."""

class Options(Backend.Options):
    """Options of a q7x2 process group, for ``pg_options``."""

    eager_connect: bool
    """Connect to all ranks when the group is made, not on first use."""
    algorithms: str
    """Only these may be chosen, "ring,sra"; empty: the variable Q7X2_ALGO, or all."""
    refine: bool
    """The durations of calls may change the algorithm of later ones. Rank 0's value counts."""
    device_path: str
    """How tensors on a device pass: "auto", "staged" or "direct"; empty: Q7X2_DEVICE_PATH."""

    def __init__(
        self,
        *,
        eager_connect: bool = False,
        algorithms: str = "",
        refine: bool = True,
        device_path: str = "",
    ) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Options: ...

class CodedOptions:
    """What the compressed collectives have in common."""

    def __init__(
        self,
        codec: str,
        *,
        max_error: float = 0.0,
        op: ReduceOp | ReduceOp.RedOpType = ...,
        residuals: list[Tensor] = ...,
        seed: int = 0,
        step: int | None = None,
        refuse_nonfinite: bool = False,
        edges: str = "auto",
        timeout: timedelta = ...,
        async_op: bool = True,
    ) -> None: ...

class ProcessGroupQ7x2(Backend):
    """The c10d backend "q7x2"; made by init_process_group."""

    @property
    def options(self) -> Options: ...
    def transports(self, rank: int) -> list[str]:
        """UCX transports of the connection to ``rank``; empty before its first use."""

    @property
    def fabric_json(self) -> str:
        """What the group knows of its hosts and network, as JSON; equal on all ranks."""

    def handles(self) -> list[str]:
        """How each rank can be reached, for ``reconfigure``."""

    def set_fabric(self, json: str) -> None:
        """Choose by this Fabric from now on; all ranks between the same two collectives."""

    def coded_all_reduce(self, tensors: list[Tensor], options: CodedOptions) -> WorkQ7x2: ...
    def coded_reduce_scatter(
        self, outputs: list[Tensor], inputs: list[Tensor], options: CodedOptions
    ) -> WorkQ7x2: ...
    def coded_all_gather(
        self, outputs: list[Tensor], inputs: list[Tensor], options: CodedOptions
    ) -> WorkQ7x2: ...
    def _start_time_estimate(self) -> None:
        """For torch.distributed._time_estimator: from now on this thread's calls are not made."""

    def _end_time_estimate(self) -> float:
        """What they would have taken, one after the other, in microseconds."""

    def monitored_barrier(self, timeout: timedelta = ..., wait_all_ranks: bool = False) -> None: ...

class WindowQ7x2:
    """Memory of each rank that other ranks write and read."""

    def __init__(self, group: ProcessGroupQ7x2) -> None: ...
    def open(self, tensor: Tensor, owning: bool) -> None:
        """All ranks: make the tensor the window."""

    def open_shared(self, sizes: list[int], like: Tensor) -> Tensor:
        """All ranks: make a tensor of that shape, with the elements of ``like``, the window."""

    def close(self) -> None:
        """All ranks: end the window."""

    def is_direct(self, rank: int) -> bool:
        """Whether this rank copies into the window of that one."""

    def put_at(
        self, tensor: Tensor, rank: int, offset: int, async_op: bool, timeout: timedelta
    ) -> Work: ...
    def get_from(
        self, tensor: Tensor, rank: int, offset: int, async_op: bool, timeout: timedelta
    ) -> Work: ...
    def signal_to(self, rank: int, async_op: bool, timeout: timedelta | None) -> Work: ...
    def await_signal(self, rank: int, async_op: bool, timeout: timedelta | None) -> Work: ...

class Server:
    """A process of a job that has no rank, and adds up what ranks send it."""

    def __init__(self, store: Store, name: str, slots: tuple[int, int, int] | None = None) -> None:
        """slots: the pool's file descriptor, the number of this process in it, and the pool's
        bytes; None: there is no limit."""
    @property
    def number(self) -> int:
        """Its number among the job's servers."""

    def look(self, duration: timedelta) -> bool:
        """Look for groups that want it, for this time. Return False if the job has ended."""

    def leave(self) -> None:
        """Leave all groups in good order."""

    def take_news(self) -> list[str]:
        """What has happened since the last call."""

class WorkQ7x2(Work):
    """What an asynchronous call on a q7x2 group returns."""

    @property
    def ready_bytes(self) -> int:
        """How many bytes from the beginning of the result are final and may be read already.

        The pieces of an all_reduce, reduce or broadcast of one contiguous CPU tensor become so in
        their order; other results all at once. 2**64 - 1 when complete.
        """

    def wait_bytes(self, nbytes: int, timeout: timedelta = ...) -> None:
        """Wait until the first ``nbytes`` bytes are final; raises as ``wait`` does."""

class HookRunner:
    """A hook at work: its thread, its process groups and its state."""

    def __init__(
        self,
        groups: list[ProcessGroup],
        parameters: list[tuple[str, torch.Tensor]],
        factory: HookFactory,
        threads: int,
        serves_many_models: bool,
        may_skip: bool,
    ) -> None: ...
    def reduce_bucket(
        self, index: int, parameters: Sequence[int], buffer: torch.Tensor, is_first: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """Without DDP: the gradients of ``parameters``, in a buffer of one dimension, in place."""

    def end_reductions(self) -> None:
        """Follows the last `reduce_bucket` of a step."""

    @property
    def step(self) -> int:
        """Reductions so far."""

    def register(self, reducer: Any) -> None:
        """Have DDP's reducer give its buckets to this runner."""

    def expect_fewer_buckets(self) -> None:
        """DDP may leave out buckets that no rank uses: a step is over when backward is."""

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What the reducer calls; returns at once."""

    def detach(self) -> None: ...
    def rescale(self, factor: float) -> None: ...
    def save(self) -> tuple[_HookState, _HookState, int]:
        """Copies: what all ranks share, what is this one's own, the number of steps."""

    def load(self, shared: _HookState, local: _HookState, step: int) -> None: ...
    def decide(
        self,
        policies: Sequence[tuple[bool, bool, str]],
        measures: bool,
        candidates: Sequence[str],
    ) -> None:
        """What holds from the next step on, equal on all ranks: (whole, skip, compressor) by
        parameter; see ``csrc/comm_hooks/run/policy.h``. ValueError for what the hook cannot do."""

    def take_facts(self) -> StepFacts | None:
        """The facts of the last step; None if no step has ended since the last call."""

    def stats(self) -> dict[str, Any]: ...
    def trace(self, enabled: bool) -> None: ...
    def take_events(self) -> list[dict[str, Any]]: ...

class HookFactory:
    """An algorithm and its options."""

class OptionField:
    """One option of a hook, as C++ describes it."""

    @property
    def name(self) -> str: ...
    @property
    def doc(self) -> str: ...
    @property
    def default(self) -> Any: ...
    def check(self, value: Any) -> None:
        """Raise ValueError, which says what is expected, if the value does not fit."""

class CompressorKind:
    """A compressor that hooks may have."""

    @property
    def name(self) -> str: ...
    @property
    def doc(self) -> str: ...
    @property
    def lanes(self) -> int:
        """Process groups that it needs, at most."""

    @property
    def fields(self) -> list[OptionField]: ...

def compressor_kinds() -> list[CompressorKind]: ...
def compressing_fields() -> list[OptionField]:
    """The options that all compressing hooks have, whatever their compressor."""

def compressing_hook(
    compressor: str, values: dict[str, Any], compressing: dict[str, Any], whole: list[bool]
) -> HookFactory:
    """A signal, a compressor and the memory between them.

    ``values`` are the compressor's options, ``compressing`` those of `compressing_fields`.
    ``whole`` says, by parameter number, whose gradients are never compressed. Raises ValueError for
    an option that does not exist, or a value that does not fit.
    """

def choose_codecs(gradients: list[tuple[float, list[tuple[float, float]]]]) -> list[int | None]:
    """The choice of each gradient, from its squared norm and (bytes, squared error) of each choice;
    None for a gradient of zeros. The bytes are fewest for no more relative error than the first
    choices have together."""

def dense_hook(dtype: torch.dtype | None) -> HookFactory:
    """The dense all-reduce, rounded to ``dtype`` on the way."""

def block_sparse_hook(dense_above: float) -> HookFactory:
    """Blocks of zeros are left out of gradients whose share of other blocks is below
    ``dense_above``."""

def composed_hook(hooks: list[HookFactory], owners: list[int]) -> HookFactory:
    """``owners``: for each parameter, the position of its hook."""

class Codec:
    """A codec without communication: a tensor becomes messages, and comes back.

    There is one message for each block of elements. Tensors are contiguous and on the CPU.

    >>> codec = q7x2.Codec("int8")
    >>> messages = torch.empty(codec.max_bytes(values.numel()), dtype=torch.uint8)
    >>> lengths = codec.encode(values, messages, block=values.numel())
    >>> codec.decode(messages, lengths, out, block=values.numel())

    Args:
        name: The codec's name, ``"int8"`` or ``"topk:0.01+int4"``; docs/codecs.md has all.

    Raises:
        ValueError: There is no codec of that name.
    """

    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str:
        """The codec's name."""

    @property
    def bits(self) -> float:
        """Expected bits of a message for each element."""

    @property
    def unbiased(self) -> bool:
        """The mean of what is decoded, over the random numbers, is what was encoded."""

    @property
    def fixed_size(self) -> bool:
        """The length of a message depends on the number of elements alone."""

    @property
    def has_messages(self) -> bool:
        """False: ranks agree on scales and add integers, and nothing can be encoded alone."""

    @property
    def keeps_error(self) -> bool:
        """It takes ``errors``: what it decodes to approximates what was encoded."""

    @property
    def group(self) -> int:
        """Elements that share a scale; 0: there are no scales."""

    def max_bytes(self, count: int) -> int:
        """The bytes of the longest message of ``count`` elements."""

    def encode(
        self,
        values: Tensor,
        messages: Tensor,
        errors: Tensor | None = None,
        *,
        block: int = 65536,
        shared_key: int = 0,
        rounding_key: int = 0,
    ) -> list[int]:
        """Write the messages of a tensor.

        Args:
            values: What is encoded, of float32.
            messages: Where the messages are written, of uint8: ``max_bytes(block)`` bytes for each
                block.
            errors: Added to ``values``; holds what was not sent afterwards. As many elements as
                ``values``, of float32.
            block: Elements per message. The last message may have fewer.
            shared_key: The key of random numbers that the decoder needs, such as rotations.
            rounding_key: The key of random numbers that only the encoder needs.

        Returns:
            The length of each message, in bytes.

        Raises:
            ValueError: A tensor has another dtype, too few elements, or is not contiguous.
            RuntimeError: The codec has no messages.
        """

    def decode(
        self,
        messages: Tensor,
        lengths: list[int],
        out: Tensor,
        *,
        add: bool = False,
        block: int = 65536,
        shared_key: int = 0,
    ) -> None:
        """Read the messages of a tensor.

        Args:
            messages: As :meth:`encode` has written them.
            lengths: What :meth:`encode` has returned.
            out: Where the elements are written, of float32.
            add: Add the elements to ``out`` instead.
            block: As for :meth:`encode`.
            shared_key: As for :meth:`encode`.

        Raises:
            ValueError: A tensor or ``lengths`` does not fit.
        """

class ShardRows:
    """FSDP's rows of shards, and the same in two parts; see fsdp/layout.py. Tensors are contiguous
    and on the CPU, of floats.

    ``pieces``: of each parameter, its elements, its room in its part, and whether it is coded.
    """

    def __init__(self, pieces: list[tuple[int, int, bool]]) -> None: ...
    def pack(self, rows: Tensor, number: int, divisor: float = 1.0) -> tuple[Tensor, Tensor]:
        """The coded part, divided, float32, and the whole one as it is; a row each for each of
        ``number`` rows, which may have no elements."""

    def unpack(self, coded: Tensor, whole: Tensor, rows: Tensor, factor: float = 1.0) -> None:
        """Fills ``rows``, as many as ``coded`` has: the inverse. The coded part is multiplied."""

def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether both have the same dtype and the same bytes. Contiguous, on the CPU."""

def subtract(values: Tensor, reference: Tensor) -> tuple[float, float]:
    """``values -= reference``, both float32; the squares of the L2 norms of what it has made, and
    of what was there before."""

class PeerMessage:
    """A message that has arrived."""

    def __init__(self, sender: int, header: Sequence[int]) -> None: ...
    @property
    def sender(self) -> int: ...
    @property
    def header(self) -> list[int]: ...
    @property
    def payload(self) -> Tensor | None: ...

class MessageQueue:
    """What has arrived in some Mails; csrc/late/message_queue.h.

    ``drives``: whether the thread that reads it makes progress while it waits.
    """

    def __init__(self, group: ProcessGroupQ7x2, drives: bool) -> None: ...
    def put(self, message: PeerMessage) -> None:
        """Any thread: add a message of this rank itself."""

class Mail:
    """Messages from any rank to any other; csrc/late/mail.h.

    ``most_sends`` None: none is dropped.
    """

    def __init__(
        self, group: ProcessGroupQ7x2, width: int, queue: MessageQueue, most_sends: int | None
    ) -> None: ...
    def send(self, peer: int, header: Sequence[int], payload: Tensor | None = None) -> None:
        """Begin to send; a message to a rank that takes none for long is dropped."""

    def receive(self, seconds: float) -> PeerMessage | None:
        """The next message of the queue; None if none has come, or only a part of one."""

    def finish_sends(self) -> None:
        """Wait until all that was sent has been taken."""

_Closed = tuple[int, dict[int, tuple[Tensor, float]], Tensor | None, int]

class Quorum:
    """Steps of ranks that wait for none; csrc/late/quorum.h. Tensors are vectors of uint8.

    ``lengths``: the least and the greatest number of bytes of a contribution.
    """

    WIDTH: int
    """Numbers of a header."""

    def __init__(
        self,
        mail: Mail,
        lengths: tuple[int, int],
        is_enough: Callable[[int], bool],
        state: Callable[[], Tensor],
    ) -> None: ...
    @property
    def step(self) -> int: ...
    def resume(self, step: int) -> None:
        """Begin with this step, equal on all ranks; RuntimeError after the first message."""

    def set_timing(self, grace: float, takeover: float, timeout: float) -> None: ...
    def close(self, data: Tensor, weight: float) -> _Closed:
        """Take part in the current step until it is closed: the mask of ranks that count, their
        contributions, the state of another rank instead, and the next step."""

    def follow(self, patience: float) -> _Closed | None:
        """Help to close the current step without a contribution."""

    def serve(self) -> None:
        """Give this rank's state to ranks that are behind, if it is this rank's turn."""

    def finish(self) -> None:
        """Wait until all ranks have called it."""

def create_backend(
    dist_backend_opts: Any, options: Options | None = None, *, in_job: bool = False
) -> ProcessGroupQ7x2: ...
def register_accelerator(
    device_type: str, stream_calls: Any, codec_kernels: Any | None = None, memory: str = ""
) -> None:
    """Take tensors of ``device_type``; ``stream_calls``: a capsule of that name."""

def reconfigure_handle(group: ProcessGroupQ7x2 | None = None) -> str:
    """How this process can be reached. ``group``: whose rank the handle carries."""

def reconfigure(
    store: Store,
    uuid: str,
    handles: list[str],
    ordered: bool,
    timeout: timedelta,
    group: ProcessGroupQ7x2 | None = None,
    options: Options | None = None,
) -> ProcessGroupQ7x2:
    """A group of the processes that the handles name; see :func:`q7x2.reconfigure`."""

def canonical_fabric(text: str) -> str:
    """Check the JSON of a Fabric, return it as q7x2 writes it; ValueError names what is wrong."""

def learn_times(fabric: str, measured: str) -> str:
    """The Fabric with the tuned times of another one instead of its own times of the same calls."""

def remember_times(measured: str) -> None:
    """Later groups of this process know the tuned times of this Fabric, which has no others."""

def catalogue_times(measured: str) -> bool:
    """Add the tuned times of this Fabric, which has no others, to the catalogue.

    False where the catalogue has no entry of its hosts and it was not measured by a probe, so that
    there is nothing to write. Raises DistBackendError where the file cannot be written.
    """

def build_info() -> dict[str, Any]:
    """What the module was compiled with: q7x2, compiler, torch, UCX headers, hwloc, CUDA."""

def ucx_info() -> dict[str, Any]:
    """The UCX that was loaded (version, library) and its resources, "transport/device"."""

def host_info() -> dict[str, Any]:
    """This host's topology, memory, network interfaces and devices."""

def cuda_info() -> dict[str, Any]:
    """The CUDA driver and devices, or the problem that hides them."""

def log_info(text: str) -> None:
    """Write a line to stderr if Q7X2_LOG is info or debug."""

def flight_json(reason: str) -> str | None:
    """What the flight recorder holds, as JSON; None if this process has had no q7x2 group."""

class LedgerFeed:
    """What the operations of this process did, for the one who writes it to a file."""

    def __init__(self) -> None: ...
    def attach(self) -> None:
        """Follow the groups of this process. Nothing if there are none yet."""

    def wait(self, seconds: float) -> None:
        """Wait until a group fails, or `wake` is called, or the time has passed."""

    def wake(self) -> None:
        """End a `wait`."""

    def take(self) -> list[dict[str, Any]]:
        """What is new since the last call; operations have the values of `ledger_columns`."""

def ledger_columns() -> list[tuple[str, str]]:
    """Names of an operation's values, and their types in SQL."""

def ledger_stats(reset: bool) -> dict[str, Any]:
    """The counters of all groups, also of those that have ended; see ``q7x2.stats``."""

def clock_offset(group: ProcessGroupQ7x2, ranks: list[int], timeout: float) -> tuple[int, int]:
    """How far the clock of the group's rank 0 is ahead, and how wrong that may be, in nanoseconds.

    Rank 0 calls it with the ``ranks`` that call it, too; others do not.
    """

def describe_group(group: ProcessGroupQ7x2) -> dict[str, Any]:
    """A group's hosts and the ways to its ranks; see ``q7x2.describe``."""

def relay_job() -> bytes | None:
    """What the processes with this one's secret say to a relay; None: it has no secret.

    Raises:
        ValueError: The secret is too short, or its file cannot be read.
    """

def exchange_algorithms(algorithms: str) -> str:
    """Force the algorithms of this thread's collectives; return what was forced before."""

def check_edges(edges: str) -> None:
    """Raise ValueError, which lists the choices, for edges that do not exist."""

def explain(
    collective: str,
    bytes: int,
    fabric: str,
    root: int = -1,
    algorithms: str = "",
    wide_accumulation: bool = False,
    codec: str = "",
    simulate: bool = False,
    edges: str = "auto",
) -> list[dict[str, Any]]:
    """The planner's candidates for a call on a Fabric (JSON): the chosen one, then by time.

    Each has ``algorithm``, ``edges`` (that are coded), ``on_device`` (the device of float32 tensors
    codes them, if it has kernels), ``slice_bytes``, ``window``, ``seconds``
    (predicted), ``seconds_after_silence`` (the same if TCP begins anew; 0 if it was not simulated),
    ``simulated`` (else the prediction is an estimate of the cost model), ``measured``
    (seconds, or None), ``first_slice_seconds``, ``loads`` (``name``, ``bytes``, ``busy`` seconds of
    each resource in use), ``bottleneck``, the index of the busiest load, or None, and ``plans``, a
    number that is equal for candidates that have the ranks do the same.
    ``wide_accumulation``: only those that may sum floats of 16 and 8 bits. ``codec``: those of
    float32 tensors compressed with it. ``simulate``: those within reach of the best are simulated,
    however long that takes, and only the best one is returned. ``edges``: as q7x2.all_reduce takes
    them.
    """

def rate_changes() -> list[tuple[int, str]]:
    """The changes of rates that this process has noticed, each with the nanoseconds since 1970."""

def plan_history(group: ProcessGroupQ7x2) -> list[dict[str, Any]]:
    """The choices of a group for each kind of call, as ``q7x2.plan.plan_history`` returns them."""

def choose(
    collective: str, bytes: int, fabric: str, root: int = -1, rank: int = 0
) -> dict[str, Any]:
    """What a new planner chooses for a call on a Fabric (JSON), seen from one rank.

    ``algorithm``, ``slice_bytes``, ``part_bytes``, ``window``, ``seconds`` (predicted), ``ops`` (of
    the rank's Plan) and ``planning_seconds``, which it took to choose.
    """

def timeline(
    collective: str,
    bytes: int,
    fabric: str,
    root: int,
    algorithm: str,
    slice_bytes: int,
    window: int,
) -> list[dict[str, Any]]:
    """Every op of a simulated call: ``rank``, ``slice``, ``kind``, ``peer``, ``begin``, ``end``."""

def export_plan(
    collective: str,
    algorithm: str,
    world_size: int | None = None,
    root: int = -1,
    fabric: str | None = None,
) -> str:
    """The Plans of all ranks as JSON, for ``Q7X2_PLAN``; the arguments are those of make_plans."""

def check_plan(text: str) -> dict[str, Any]:
    """Prove the Plans of a JSON text, as ``q7x2 plan check`` does.

    Returns totals of all ranks for one slice (``algorithm``, ``collective``, ``ranks``, ``root``,
    ``ops``, ``messages``, ``steps``, ``rounds_once``), maxima over the ranks (``scratch_blocks``,
    ``stages``), and the contract (``contributors``, ``receivers``, ``quorum``). Raises ValueError
    with the position in the text, or with the checker's message.
    """

def make_plans(
    collective: str,
    algorithm: str,
    world_size: int | None = None,
    root: int = -1,
    fabric: str | None = None,
) -> list[dict[str, Any]]:
    """The Plans of all ranks, by rank, then those of the Fabric's servers, as plain data.

    The Plans of servers are there only if the algorithm has servers.
    ``algorithm`` may name its parameter, "aggregator:2"; else it is the largest one on offer.
    ``fabric`` is JSON, or None where nothing is known of the hosts; ``world_size`` may be left out
    where there is one. A Plan has ``algorithm``, ``rank``, ``world_size``, ``root``,
    ``part_weights``, ``scratch_blocks`` and ``ops``; an op has ``kind`` (send, recv, copy, reduce),
    ``peer``, ``message``, ``part``, ``is_final``, ``after`` (indices of the ops it waits for) and
    ``text``. Raises RuntimeError for what does not exist.
    """
