#include "bindings/comm_hooks.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/value_error.h"
#include "comm_hooks/coded.h"
#include "comm_hooks/composed.h"
#include "comm_hooks/dense.h"
#include "comm_hooks/powersgd.h"
#include "comm_hooks/runner.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// An algorithm and its options, to be run on any model.
struct HookFactory {
  MakeHook make;
};

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

py::dict stats_dict(HookRunner& runner) {
  HookStats stats;
  without_gil([&] { stats = runner.stats(); });
  return py::dict("steps"_a = stats.steps, "skipped_steps"_a = stats.skipped_steps,
                  "buckets"_a = stats.buckets, "gradient_bytes"_a = stats.gradient_bytes,
                  "message_bytes"_a = stats.message_bytes, "cpu_seconds"_a = stats.cpu_seconds);
}

py::list events_list(HookRunner& runner) {
  std::vector<HookEvent> events;
  without_gil([&] { events = runner.take_events(); });
  py::list list;
  for (const HookEvent& event : events) {
    list.append(py::dict("step"_a = event.step, "bucket"_a = event.bucket, "name"_a = event.name,
                         "lane"_a = event.lane, "begin"_a = event.begin, "end"_a = event.end));
  }
  return list;
}

}  // namespace

void bind_comm_hooks(py::module_& module) {
  py::class_<HookFactory>(module, "HookFactory", "An algorithm and its options.");

  py::class_<HookRunner, std::shared_ptr<HookRunner>>(
      module, "HookRunner", "A hook at work: its thread, its process groups and its state.")
      .def(py::init([](std::vector<ProcessGroupPtr> groups, const Parameters& parameters,
                       const HookFactory& factory, int threads, bool serves_many_models) {
             const auto serves = serves_many_models ? HookRunner::Serves::kManyModels
                                                    : HookRunner::Serves::kOneModel;
             return HookRunner::make(std::move(groups), named(parameters), factory.make, threads,
                                     serves, without_gil);
           }),
           py::arg("groups"), py::arg("parameters"), py::arg("factory"), py::arg("threads"),
           py::arg("serves_many_models"), py::call_guard<py::gil_scoped_release>())
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
      .def(
          "reduce_tensor",
          [](HookRunner& self, size_t index, const at::Tensor& gradient, bool is_first) {
            return std::make_shared<torch::jit::PythonFutureWrapper>(
                self.reduce(index, gradient, is_first));
          },
          py::arg("index"), py::arg("gradient"), py::arg("is_first"),
          py::call_guard<py::gil_scoped_release>())
      .def("end_reductions", &HookRunner::end_reductions, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly(
          "step", py::cpp_function(&HookRunner::step, py::call_guard<py::gil_scoped_release>()))
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
      .def("trace", &HookRunner::trace, py::arg("enabled"),
           py::call_guard<py::gil_scoped_release>())
      .def("take_events", &events_list);

  module.def(
      "dense_hook",
      [](std::optional<at::ScalarType> dtype) {
        return HookFactory{
            [dtype](const HookContext& context) { return make_dense(context, dtype); }};
      },
      py::arg("dtype"));

  py::enum_<Momentum>(module, "Momentum", "What a coded hook sends in the gradient's place.")
      .value("NONE", Momentum::kNone)
      .value("ACCUMULATED", Momentum::kAccumulated)
      .value("AVERAGED", Momentum::kAveraged)
      .value("GLOBAL", Momentum::kGlobal);

  module.def(
      "coded_hook",
      [](const std::vector<std::pair<uint64_t, std::string>>& stages, std::vector<bool> whole,
         uint64_t full_precision_start, uint64_t full_precision_period,
         uint64_t full_precision_length, bool error_feedback, Momentum momentum,
         double momentum_factor, double clip_norm, std::vector<std::string> choices,
         uint64_t choose_every, bool over_stock, const std::string& edges, uint64_t seed) {
        CodedHookOptions options;
        options.edges = or_value_error([&] { return parse_edge_wish(edges); });
        for (const auto& [first_step, codec] : stages)
          options.stages.push_back({first_step, codec});
        options.whole = std::move(whole);
        options.full_precision = {full_precision_start, full_precision_period,
                                  full_precision_length};
        options.error_feedback = error_feedback;
        options.momentum = momentum;
        options.momentum_factor = momentum_factor;
        options.clip_norm = clip_norm;
        options.choices = std::move(choices);
        options.choose_every = choose_every;
        options.over_stock = over_stock;
        options.seed = seed;
        return HookFactory{
            [options](const HookContext& context) { return make_coded(context, options); }};
      },
      py::kw_only(), py::arg("stages"), py::arg("whole"), py::arg("full_precision_start"),
      py::arg("full_precision_period"), py::arg("full_precision_length"), py::arg("error_feedback"),
      py::arg("momentum"), py::arg("momentum_factor"), py::arg("clip_norm"), py::arg("choices"),
      py::arg("choose_every"), py::arg("over_stock"), py::arg("edges"), py::arg("seed"));

  module.def(
      "powersgd_hook",
      [](std::vector<int64_t> ranks, int64_t default_rank, uint64_t full_precision_start,
         uint64_t full_precision_period, uint64_t full_precision_length,
         double min_compression_rate, bool error_feedback, bool warm_start, bool alternating,
         std::optional<at::ScalarType> factor_dtype, uint64_t seed) {
        const PowerSgdOptions options{
            std::move(ranks),
            default_rank,
            {full_precision_start, full_precision_period, full_precision_length},
            min_compression_rate,
            error_feedback,
            warm_start,
            alternating,
            factor_dtype,
            seed};
        return HookFactory{
            [options](const HookContext& context) { return make_powersgd(context, options); }};
      },
      py::kw_only(), py::arg("ranks"), py::arg("default_rank"), py::arg("full_precision_start"),
      py::arg("full_precision_period"), py::arg("full_precision_length"),
      py::arg("min_compression_rate"), py::arg("error_feedback"), py::arg("warm_start"),
      py::arg("alternating"), py::arg("factor_dtype"), py::arg("seed"));

  module.def(
      "flat_powersgd_hook",
      [](int64_t rank, std::vector<bool> absent, uint64_t full_precision_start,
         uint64_t full_precision_period, uint64_t full_precision_length, bool error_feedback,
         bool warm_start, std::optional<at::ScalarType> factor_dtype, uint64_t seed) {
        const FlatPowerSgdOptions options{
            rank,
            std::move(absent),
            {full_precision_start, full_precision_period, full_precision_length},
            error_feedback,
            warm_start,
            factor_dtype,
            seed};
        return HookFactory{
            [options](const HookContext& context) { return make_flat_powersgd(context, options); }};
      },
      py::kw_only(), py::arg("rank"), py::arg("absent"), py::arg("full_precision_start"),
      py::arg("full_precision_period"), py::arg("full_precision_length"), py::arg("error_feedback"),
      py::arg("warm_start"), py::arg("factor_dtype"), py::arg("seed"));

  module.def(
      "composed_hook",
      [](const std::vector<HookFactory>& factories, std::vector<size_t> owners) {
        std::vector<MakeHook> hooks;
        for (const HookFactory& factory : factories) hooks.push_back(factory.make);
        return HookFactory{[hooks, owners](const HookContext& context) {
          return make_composed(context, hooks, owners);
        }};
      },
      py::arg("hooks"), py::arg("owners"));
}

}  // namespace q7x2
