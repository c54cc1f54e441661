#include "bindings/backend.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/failure_linger.h"
#include "backend/process_group.h"
#include "base/host_lock.h"
#include "bindings/value_error.h"
#include "device/accelerators.h"
#include "kernels/cuda/codec_kernels.h"
#include "plan/algorithms/algorithm_names.h"
#include "transport/bootstrap/peer_address.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using Options = ProcessGroupQ7x2::Options;

bool holds_gil() {
  return Py_IsInitialized() != 0 && PyGILState_Check() != 0;
}

void check_capsule(const py::capsule& capsule, std::string_view expected) {
  const char* const name = capsule.name();
  if (name == nullptr || expected != name) {
    throw py::type_error("expected a capsule called '" + std::string(expected) +
                         "', got one called '" + std::string(name == nullptr ? "" : name) + "'");
  }
}

// While a thread waits for communication, Python can handle Ctrl-C.
void check_signals() {
  if (!Py_IsInitialized() || PyGILState_Check() != 0) {
    return;
  }
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

// Stopping the runtime joins threads, and these may be waiting for the GIL.
void run_without_gil(const std::function<void()>& body) {
  if (holds_gil()) {
    const py::gil_scoped_release no_gil;
    body();
  } else {
    body();
  }
}

c10::intrusive_ptr<ProcessGroupQ7x2> create_backend(
    const c10d::DistributedBackendOptions& distributed, const py::object& given, bool in_job) {
  c10::intrusive_ptr<Options> options;
  if (given.is_none()) {
    options = c10::make_intrusive<Options>();
  } else if (py::isinstance<Options>(given)) {
    options = c10::make_intrusive<Options>(*given.cast<c10::intrusive_ptr<Options>>());
  } else {
    throw py::type_error("pg_options for the backend q7x2 must be a q7x2.Options, got " +
                         py::cast<std::string>(py::type::of(given).attr("__name__")));
  }
  options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(distributed.timeout);
  options->group_name = distributed.group_id;
  options->in_job = in_job;
  options->global_ranks_in_group.assign(distributed.global_ranks_in_group.begin(),
                                        distributed.global_ranks_in_group.end());
  return or_value_error([&] {
    const py::gil_scoped_release no_gil;
    const StayIfEnding stay;
    if (compat::begins_without_members(distributed)) {
      return c10::make_intrusive<ProcessGroupQ7x2>(ProcessGroupQ7x2::WithoutMembers(),
                                                   distributed.store, distributed.group_rank,
                                                   distributed.group_size, std::move(options));
    }
    return c10::make_intrusive<ProcessGroupQ7x2>(distributed.store, distributed.group_rank,
                                                 distributed.group_size, std::move(options));
  });
}

// A handle contains the address of this process. So the process must be reachable from then on,
// with or without a group.
std::string reconfigure_handle(const c10::intrusive_ptr<ProcessGroupQ7x2>& group) {
  if (group) {
    return group->own_handle();
  }
  // Guarded by the GIL. Runtime::shutdown_instance stops it.
  static auto* const kept = new std::shared_ptr<Runtime>();
  *kept = Runtime::instance();
  return PeerAddress{peer_info_of_process(**kept)}.encode((*kept)->secret());
}

c10::intrusive_ptr<ProcessGroupQ7x2> reconfigure(const c10::intrusive_ptr<c10d::Store>& store,
                                                 std::string uuid, std::vector<std::string> handles,
                                                 bool ordered, std::chrono::milliseconds timeout,
                                                 c10::intrusive_ptr<ProcessGroupQ7x2> group,
                                                 c10::intrusive_ptr<Options> options) {
  const py::gil_scoped_release no_gil;
  const StayIfEnding stay;
  return ProcessGroupQ7x2::reconfigured(store, {.uuid = std::move(uuid),
                                                .handles = std::move(handles),
                                                .ordered = ordered,
                                                .timeout = timeout,
                                                .old = group.get(),
                                                .options = std::move(options)});
}

void set_algorithms(Options& options, std::string algorithms) {
  or_value_error([&] { return parse_algorithms(algorithms); });
  options.algorithms = std::move(algorithms);
}

void set_device_path(Options& options, std::string path) {
  if (!path.empty()) or_value_error([&] { return parse_device_path(path, "device_path"); });
  options.device_path = std::move(path);
}

/// `memory`: "cuda", or empty.
MemoryKind memory_kind(const std::string& memory) {
  if (!memory.empty() && memory != "cuda") {
    throw Error(ErrorCode::kInvalidArgument,
                "memory: expected 'cuda', or '' if its memory is not "
                "that of CUDA's driver, got '" +
                    memory + "'");
  }
  return memory.empty() ? MemoryKind::kHost : MemoryKind::kCuda;
}

}  // namespace

void bind_backend(py::module_& module) {
  // The base classes are torch's; they must be known before ours.
  const py::module_ c10d = py::module_::import("torch._C._distributed_c10d");

  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) {
        std::rethrow_exception(raised);
      }
    } catch (const Error& error) {
      const py::object type =
          error.code() == ErrorCode::kInvalidArgument
              ? py::reinterpret_borrow<py::object>(PyExc_RuntimeError)
              : py::module_::import("torch.distributed").attr("DistBackendError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });

  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(module, "Options", R"(
Options of a q7x2 process group, for ``pg_options``.

Attributes:
    eager_connect (bool): connect to all ranks when the group is made, not on first use.
    algorithms (str): only these algorithms may be chosen, for example ``"ring,sra"``; empty means
        the environment variable ``Q7X2_ALGO``, or all. It must be the same on all ranks. An unknown
        name raises ValueError.
    refine (bool): the durations of calls may change the algorithm of later ones. Rank 0's value
        counts. ``Q7X2_REFINE=0`` switches it off as well.
    device_path (str): how uncompressed tensors on a device pass to other ranks: ``"staged"``
        through pinned host memory, or ``"direct"``, UCX gets their addresses. ``"auto"`` is
        ``"direct"`` between ranks of one host if UCX can copy between their devices. Empty means
        the environment variable ``Q7X2_DEVICE_PATH``, or ``"auto"``. Rank 0's value counts.
        Another text raises ValueError.
)")
      .def(py::init([](bool eager_connect, std::string algorithms, bool refine,
                       std::string device_path) {
             auto options = c10::make_intrusive<Options>();
             options->eager_connect = eager_connect;
             options->refine = refine;
             set_algorithms(*options, std::move(algorithms));
             set_device_path(*options, std::move(device_path));
             return options;
           }),
           py::kw_only(), py::arg("eager_connect") = false, py::arg("algorithms") = "",
           py::arg("refine") = true, py::arg("device_path") = "")
      .def_readwrite("refine", &Options::refine)
      .def_readwrite("eager_connect", &Options::eager_connect)
      .def_property(
          "algorithms", [](const Options& self) { return self.algorithms; }, &set_algorithms)
      .def_property(
          "device_path", [](const Options& self) { return self.device_path; }, &set_device_path)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__",
           [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });

  py::class_<CodedOptions>(module, "CodedOptions",
                           "What the compressed collectives have in common.")
      .def(py::init([](std::string codec, double max_error, const c10d::ReduceOp& op,
                       std::vector<at::Tensor> residuals, uint64_t seed,
                       std::optional<uint64_t> step, bool refuse_nonfinite,
                       const std::string& edges, std::chrono::milliseconds timeout, bool async_op) {
             return CodedOptions{.codec = std::move(codec),
                                 .max_error = max_error,
                                 .op = op,
                                 .errors = std::move(residuals),
                                 .seed = seed,
                                 .step = step,
                                 .refuses_nonfinite = refuse_nonfinite,
                                 .edges = or_value_error([&] { return parse_edge_wish(edges); }),
                                 .timeout = timeout,
                                 .async_op = async_op};
           }),
           py::arg("codec"), py::kw_only(), py::arg("max_error") = 0.0,
           py::arg("op") = c10d::ReduceOp(c10d::ReduceOp::SUM),
           py::arg("residuals") = std::vector<at::Tensor>(), py::arg("seed") = 0,
           py::arg("step") = py::none(), py::arg("refuse_nonfinite") = false,
           py::arg("edges") = "auto", py::arg("timeout") = c10d::kUnsetTimeout,
           py::arg("async_op") = true);

  module.def(
      "register_accelerator",
      [](const std::string& device_type, const py::capsule& stream_calls,
         const std::optional<py::capsule>& kernels, const std::string& memory) {
        check_capsule(stream_calls, "q7x2.stream_calls");
        if (kernels) check_capsule(*kernels, "q7x2.codec_kernels");
        or_value_error([&] {
          register_accelerator(device_type, *stream_calls.get_pointer<const StreamCalls>(),
                               memory_kind(memory));
          if (kernels) {
            register_codec_kernels(device_type, *kernels->get_pointer<const CodecKernels>());
          }
        });
        // they are never freed, because `stream_calls` stay in use
        py::capsule(stream_calls).release();
        if (kernels) py::capsule(*kernels).release();
      },
      py::arg("device_type"), py::arg("stream_calls"), py::arg("codec_kernels") = py::none(),
      py::arg("memory") = "");

  py::class_<ProcessGroupQ7x2, c10d::Backend, c10::intrusive_ptr<ProcessGroupQ7x2>>(
      module, "ProcessGroupQ7x2", "The c10d backend \"q7x2\"; made by init_process_group.")
      .def_property_readonly("options", &ProcessGroupQ7x2::options)
      .def("transports", &ProcessGroupQ7x2::transports, py::arg("rank"),
           py::call_guard<py::gil_scoped_release>(),
           "Names of the UCX transports of the connection to `rank`, for example ['posix', "
           "'sysv']; empty before its first use.")
      .def_property_readonly("fabric_json", &ProcessGroupQ7x2::fabric_json,
                             "What the group knows of its hosts and network, as JSON; equal on "
                             "all ranks.")
      .def("handles", &ProcessGroupQ7x2::handles, py::call_guard<py::gil_scoped_release>(),
           "How each rank can be reached, for `reconfigure`.")
      .def("set_fabric", &ProcessGroupQ7x2::set_fabric, py::arg("json"),
           py::call_guard<py::gil_scoped_release>(),
           "Chooses by this Fabric from now on. All ranks must call it between the same two "
           "collectives.")
      .def(
          "coded_all_reduce",
          [](ProcessGroupQ7x2& self, std::vector<at::Tensor> tensors, const CodedOptions& options) {
            return self.coded_all_reduce(tensors, options);
          },
          py::arg("tensors"), py::arg("options"), py::call_guard<py::gil_scoped_release>())
      .def(
          "coded_reduce_scatter",
          [](ProcessGroupQ7x2& self, std::vector<at::Tensor> outputs,
             std::vector<at::Tensor> inputs, const CodedOptions& options) {
            return self.coded_reduce_scatter(outputs, inputs, options);
          },
          py::arg("outputs"), py::arg("inputs"), py::arg("options"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "coded_all_gather",
          [](ProcessGroupQ7x2& self, std::vector<at::Tensor> outputs,
             std::vector<at::Tensor> inputs, const CodedOptions& options) {
            return self.coded_all_gather(outputs, inputs, options);
          },
          py::arg("outputs"), py::arg("inputs"), py::arg("options"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "_start_time_estimate", [](ProcessGroupQ7x2& self) { self.calls().estimate().begin(); },
          "For torch.distributed._time_estimator: from now on, this thread's calls on the group "
          "are not made, but the times that they would take are added up.")
      .def(
          "_end_time_estimate",
          [](ProcessGroupQ7x2& self) { return self.calls().estimate().end(); },
          "What the calls would have taken, one after the other, in microseconds.")
      .def(
          "monitored_barrier",
          [](ProcessGroupQ7x2& self, std::chrono::milliseconds timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout") = c10d::kUnsetTimeout, py::arg("wait_all_ranks") = false,
          py::call_guard<py::gil_scoped_release>());

  py::class_<WorkQ7x2, c10d::Work, c10::intrusive_ptr<WorkQ7x2>>(
      module, "WorkQ7x2", "What an asynchronous call on a q7x2 group returns.")
      .def_property_readonly(
          "ready_bytes", [](const WorkQ7x2& self) { return self.ready_bytes(); },
          "How many bytes from the beginning of the result are final and may be read already. The "
          "pieces of an all_reduce, reduce or broadcast of one contiguous CPU tensor become so in "
          "their order; other results all at once. 2**64 - 1 when complete.")
      .def("wait_bytes", &WorkQ7x2::wait_bytes, py::arg("nbytes"), py::arg("timeout") = kNoTimeout,
           py::call_guard<py::gil_scoped_release>(),
           "Waits until the first `nbytes` bytes of the result are final. Raises what `wait` "
           "raises.");

  module.def("create_backend", &create_backend, py::arg("dist_backend_opts"),
             py::arg("options") = py::none(), py::kw_only(), py::arg("in_job") = false,
             "Makes the backend of one process group; torch.distributed calls it. `in_job`: the "
             "group's global ranks are those of the default group.");

  module.def("reconfigure_handle", &reconfigure_handle, py::arg("group") = py::none(),
             "How this process can be reached. `group`: whose rank the handle carries.");
  module.def("reconfigure", &reconfigure, py::arg("store"), py::arg("uuid"), py::arg("handles"),
             py::arg("ordered"), py::arg("timeout"), py::arg("group") = py::none(),
             py::arg("options") = py::none(),
             "Makes a group of the processes that the handles name; see q7x2.reconfigure.");

  set_host_lock(holds_gil);
  Runtime::set_hooks({check_signals, run_without_gil});
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const bool others_run = py::module_::import("threading").attr("active_count")().cast<int>() > 1;
    const py::gil_scoped_release no_gil;
    finish_failure_lingers(Runtime::check_interrupt);
    BackgroundProbe::stop_all();
    Runtime::shutdown_instance(others_run);
  }));
}

}  // namespace q7x2
