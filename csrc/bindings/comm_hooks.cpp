#include "bindings/comm_hooks.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "comm_hooks/coded.h"
#include "comm_hooks/dense.h"
#include "comm_hooks/powersgd.h"
#include "comm_hooks/runner.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// What DDP's reducer owns; the runner is Python's too.
class RunnerHook final : public c10d::CommHookInterface {
 public:
  explicit RunnerHook(std::shared_ptr<HookRunner> runner) : runner_(std::move(runner)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return runner_->reduce(bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  const std::shared_ptr<HookRunner> runner_;
};

void without_gil(const std::function<void()>& body) {
  if (Py_IsInitialized() && PyGILState_Check() != 0) {
    const py::gil_scoped_release no_gil;
    body();
  } else {
    body();
  }
}

std::vector<HookRunner::NamedParameter> named(const Parameters& parameters) {
  std::vector<HookRunner::NamedParameter> list;
  for (const auto& [name, tensor] : parameters) list.push_back({name, tensor});
  return list;
}

std::shared_ptr<HookRunner> make(std::vector<ProcessGroupPtr> groups, const Parameters& parameters,
                                 int threads, const HookRunner::MakeHook& make_hook) {
  const py::gil_scoped_release no_gil;
  return HookRunner::make(std::move(groups), named(parameters), make_hook, threads, without_gil);
}

py::dict stats_dict(HookRunner& runner) {
  const HookStats stats = runner.stats();
  return py::dict("steps"_a = stats.steps, "skipped_steps"_a = stats.skipped_steps,
                  "buckets"_a = stats.buckets, "gradient_bytes"_a = stats.gradient_bytes,
                  "message_bytes"_a = stats.message_bytes, "cpu_seconds"_a = stats.cpu_seconds);
}

py::list events_list(HookRunner& runner) {
  py::list list;
  for (const HookEvent& event : runner.take_events()) {
    list.append(py::dict("step"_a = event.step, "bucket"_a = event.bucket, "name"_a = event.name,
                         "lane"_a = event.lane, "begin"_a = event.begin, "end"_a = event.end));
  }
  return list;
}

}  // namespace

void bind_comm_hooks(py::module_& module) {
  py::class_<HookRunner, std::shared_ptr<HookRunner>>(
      module, "HookRunner", "A hook at work: its thread, its process groups and its state.")
      .def(
          "register",
          [](const std::shared_ptr<HookRunner>& self, c10d::Reducer& reducer) {
            reducer.register_comm_hook(std::make_unique<RunnerHook>(self));
          },
          py::arg("reducer"), py::call_guard<py::gil_scoped_release>())
      .def(
          "reduce",
          [](HookRunner& self, c10d::GradBucket& bucket) {
            return std::make_shared<torch::jit::PythonFutureWrapper>(self.reduce(bucket));
          },
          py::arg("bucket"), py::call_guard<py::gil_scoped_release>())
      .def("detach", &HookRunner::detach, py::call_guard<py::gil_scoped_release>())
      .def("rescale", &HookRunner::rescale, py::arg("factor"),
           py::call_guard<py::gil_scoped_release>())
      .def("save",
           [](HookRunner& self) {
             HookState shared;
             HookState local;
             uint64_t step = 0;
             {
               const py::gil_scoped_release no_gil;
               self.save(shared, local, step);
             }
             return py::make_tuple(shared, local, step);
           })
      .def("load", &HookRunner::load, py::arg("shared"), py::arg("local"), py::arg("step"),
           py::call_guard<py::gil_scoped_release>())
      .def("stats", &stats_dict)
      .def("trace", &HookRunner::trace, py::arg("enabled"))
      .def("take_events", &events_list);

  module.def(
      "make_dense_hook",
      [](std::vector<ProcessGroupPtr> groups, const Parameters& parameters, int threads,
         std::optional<at::ScalarType> dtype) {
        return make(std::move(groups), parameters, threads,
                    [dtype](const HookContext& context) { return make_dense(context, dtype); });
      },
      py::arg("groups"), py::arg("parameters"), py::arg("threads"), py::kw_only(),
      py::arg("dtype"));

  module.def(
      "make_coded_hook",
      [](std::vector<ProcessGroupPtr> groups, const Parameters& parameters, int threads,
         std::string codec, std::vector<bool> whole, uint64_t full_precision_start,
         uint64_t full_precision_period, uint64_t full_precision_length, bool error_feedback,
         uint64_t seed) {
        const CodedHookOptions options{
            std::move(codec),
            std::move(whole),
            {full_precision_start, full_precision_period, full_precision_length},
            error_feedback,
            seed};
        return make(std::move(groups), parameters, threads,
                    [options](const HookContext& context) { return make_coded(context, options); });
      },
      py::arg("groups"), py::arg("parameters"), py::arg("threads"), py::kw_only(), py::arg("codec"),
      py::arg("whole"), py::arg("full_precision_start"), py::arg("full_precision_period"),
      py::arg("full_precision_length"), py::arg("error_feedback"), py::arg("seed"));

  module.def(
      "make_powersgd_hook",
      [](std::vector<ProcessGroupPtr> groups, const Parameters& parameters, int threads,
         std::vector<int64_t> ranks, int64_t default_rank, uint64_t full_precision_start,
         uint64_t full_precision_period, uint64_t full_precision_length,
         double min_compression_rate, bool error_feedback, bool warm_start, bool alternating,
         uint64_t seed) {
        const PowerSgdOptions options{
            std::move(ranks),
            default_rank,
            {full_precision_start, full_precision_period, full_precision_length},
            min_compression_rate,
            error_feedback,
            warm_start,
            alternating,
            seed};
        return make(std::move(groups), parameters, threads, [options](const HookContext& context) {
          return make_powersgd(context, options);
        });
      },
      py::arg("groups"), py::arg("parameters"), py::arg("threads"), py::kw_only(), py::arg("ranks"),
      py::arg("default_rank"), py::arg("full_precision_start"), py::arg("full_precision_period"),
      py::arg("full_precision_length"), py::arg("min_compression_rate"), py::arg("error_feedback"),
      py::arg("warm_start"), py::arg("alternating"), py::arg("seed"));
}

}  // namespace q7x2
