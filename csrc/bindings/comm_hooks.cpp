#include "bindings/comm_hooks.h"

#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/hook_options.h"
#include "bindings/value_error.h"
#include "comm_hooks/run/runner.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// The object that DDP's reducer owns; Python also has a reference to the runner.
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

py::object facts_dict(HookRunner& runner) {
  std::optional<StepFacts> facts;
  without_gil([&] { facts = runner.take_facts(); });
  if (!facts) return py::none();
  py::dict gradients;
  for (const auto& [number, one] : facts->gradients) {
    gradients[py::int_(number)] = py::make_tuple(one.gradient, one.residual, one.uses, one.errors);
  }
  return py::dict("step"_a = facts->step, "is_finite"_a = facts->is_finite,
                  "step_seconds"_a = facts->times.step, "wire_seconds"_a = facts->times.wire,
                  "gradients"_a = gradients);
}

/// (whole, skip, compressor) for each parameter.
using PolicyRows = std::vector<std::tuple<bool, bool, std::string>>;

void decide(HookRunner& runner, const PolicyRows& rows, bool measures,
            std::vector<std::string> candidates) {
  Decision decision;
  for (const auto& [whole, skip, compressor] : rows) {
    decision.policies.push_back({whole, skip, compressor});
  }
  decision.measures = measures;
  decision.candidates = std::move(candidates);
  or_value_error([&] { without_gil([&] { runner.decide(std::move(decision)); }); });
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
  bind_hook_options(module);
  py::class_<HookRunner, std::shared_ptr<HookRunner>>(
      module, "HookRunner", "A hook at work: its thread, its process groups and its state.")
      .def(py::init([](std::vector<ProcessGroupPtr> groups, const Parameters& parameters,
                       const HookFactory& factory, int threads, bool serves_many_models,
                       bool may_skip) {
             const auto serves = serves_many_models ? HookRunner::Serves::kManyModels
                                                    : HookRunner::Serves::kOneModel;
             return HookRunner::make(std::move(groups), named(parameters), factory.make, threads,
                                     serves, may_skip, without_gil);
           }),
           py::arg("groups"), py::arg("parameters"), py::arg("factory"), py::arg("threads"),
           py::arg("serves_many_models"), py::arg("may_skip"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "register",
          [](const std::shared_ptr<HookRunner>& self, c10d::Reducer& reducer) {
            reducer.register_comm_hook(std::make_unique<RunnerHook>(self));
          },
          py::arg("reducer"), py::call_guard<py::gil_scoped_release>())
      .def("expect_fewer_buckets", &HookRunner::expect_fewer_buckets,
           py::call_guard<py::gil_scoped_release>())
      .def(
          "reduce",
          [](HookRunner& self, c10d::GradBucket& bucket) {
            return std::make_shared<torch::jit::PythonFutureWrapper>(self.reduce(bucket));
          },
          py::arg("bucket"), py::call_guard<py::gil_scoped_release>())
      .def(
          "reduce_bucket",
          [](HookRunner& self, size_t index, const std::vector<size_t>& parameters,
             const at::Tensor& buffer, bool is_first) {
            return or_value_error([&] {
              return std::make_shared<torch::jit::PythonFutureWrapper>(
                  self.reduce(index, parameters, buffer, is_first));
            });
          },
          py::arg("index"), py::arg("parameters"), py::arg("buffer"), py::arg("is_first"),
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
      .def("decide", &decide, py::arg("policies"), py::arg("measures"), py::arg("candidates"))
      .def("take_facts", &facts_dict)
      .def("stats", &stats_dict)
      .def("trace", &HookRunner::trace, py::arg("enabled"),
           py::call_guard<py::gil_scoped_release>())
      .def("take_events", &events_list);
}

}  // namespace q7x2
