#include "bindings/hook_options.h"

#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/value_error.h"
#include "comm_hooks/composed.h"
#include "comm_hooks/hooks.h"
#include "comm_hooks/signal.h"

namespace q7x2 {
namespace {

namespace py = pybind11;

// The defaults are those of the structs. Python's classes of hooks have the same, which a test
// compares.

void bind_compressing(py::module_& module) {
  const CompressingOptions defaults;
  py::class_<CompressingOptions>(module, "CompressingOptions",
                                 "What all compressing hooks can be asked for.")
      .def(py::init([](uint64_t start_iter, uint64_t burst_every, uint64_t burst_steps,
                       bool use_error_feedback, const std::string& signal, double momentum,
                       double kept_momentum, double clip_norm) {
             CompressingOptions options;
             options.signal = {signal, momentum, kept_momentum};
             or_value_error([&] { return make_signal(options.signal, 1); });
             options.full_precision = {start_iter, burst_every, burst_steps};
             options.error_feedback = use_error_feedback;
             options.clip_norm = clip_norm;
             return options;
           }),
           py::kw_only(), py::arg("start_iter") = defaults.full_precision.start,
           py::arg("burst_every") = defaults.full_precision.period,
           py::arg("burst_steps") = defaults.full_precision.length,
           py::arg("use_error_feedback") = defaults.error_feedback,
           py::arg("signal") = defaults.signal.name, py::arg("momentum") = defaults.signal.momentum,
           py::arg("kept_momentum") = defaults.signal.kept_momentum,
           py::arg("clip_norm") = defaults.clip_norm)
      .def_property_readonly(
          "start_iter", [](const CompressingOptions& self) { return self.full_precision.start; })
      .def_property_readonly(
          "burst_every", [](const CompressingOptions& self) { return self.full_precision.period; })
      .def_property_readonly(
          "burst_steps", [](const CompressingOptions& self) { return self.full_precision.length; })
      .def_readonly("use_error_feedback", &CompressingOptions::error_feedback)
      .def_property_readonly("signal",
                             [](const CompressingOptions& self) { return self.signal.name; })
      .def_property_readonly("momentum",
                             [](const CompressingOptions& self) { return self.signal.momentum; })
      .def_property_readonly(
          "kept_momentum", [](const CompressingOptions& self) { return self.signal.kept_momentum; })
      .def_readonly("clip_norm", &CompressingOptions::clip_norm);
}

void bind_codec_options(py::module_& module) {
  const CodecOptions defaults;
  py::class_<CodecOptions>(module, "CodecOptions", "The compressor that goes through codecs.")
      .def(
          py::init([](const std::vector<std::pair<uint64_t, std::string>>& stages,
                      std::vector<bool> whole, bool per_parameter, std::vector<std::string> choices,
                      uint64_t choose_every, double critical_change, bool over_stock,
                      const std::string& edges, uint64_t random_seed) {
            CodecOptions options;
            for (const auto& [step, codec] : stages) options.stages.push_back({step, codec});
            options.whole = std::move(whole);
            options.per_parameter = per_parameter;
            options.choices = std::move(choices);
            options.choose_every = choose_every;
            options.critical_change = critical_change;
            options.over_stock = over_stock;
            options.edges = or_value_error([&] { return parse_edge_wish(edges); });
            options.seed = random_seed;
            return options;
          }),
          py::kw_only(), py::arg("stages"), py::arg("whole"),
          py::arg("per_parameter") = defaults.per_parameter, py::arg("choices") = defaults.choices,
          py::arg("choose_every") = defaults.choose_every,
          py::arg("critical_change") = defaults.critical_change,
          py::arg("over_stock") = defaults.over_stock, py::arg("edges") = to_string(defaults.edges),
          py::arg("random_seed") = defaults.seed);
}

void bind_low_rank(py::module_& module) {
  const LowRankOptions defaults;
  py::class_<LowRankOptions>(module, "LowRankOptions", "PowerSGD, matrix by matrix.")
      .def(
          py::init([](std::vector<int64_t> ranks, int64_t default_rank, double min_compression_rate,
                      bool warm_start, uint64_t reset_every, bool alternating,
                      std::optional<at::ScalarType> factor_dtype, uint64_t random_seed) {
            return LowRankOptions{std::move(ranks), default_rank, min_compression_rate,
                                  warm_start,       reset_every,  alternating,
                                  factor_dtype,     random_seed};
          }),
          py::kw_only(), py::arg("ranks"), py::arg("default_rank") = defaults.default_rank,
          py::arg("min_compression_rate") = defaults.min_compression_rate,
          py::arg("warm_start") = defaults.warm_start,
          py::arg("reset_every") = defaults.reset_every,
          py::arg("alternating") = defaults.alternating, py::arg("factor_dtype") = py::none(),
          py::arg("random_seed") = defaults.seed)
      .def_readonly("min_compression_rate", &LowRankOptions::min_compression_rate)
      .def_readonly("warm_start", &LowRankOptions::warm_start)
      .def_readonly("reset_every", &LowRankOptions::reset_every)
      .def_readonly("alternating", &LowRankOptions::alternating)
      .def_readonly("random_seed", &LowRankOptions::seed);

  const FlatLowRankOptions flat;
  py::class_<FlatLowRankOptions>(module, "FlatLowRankOptions", "PowerSGD of whole buckets.")
      .def(py::init([](int64_t rank, std::vector<bool> absent, bool warm_start,
                       std::optional<at::ScalarType> factor_dtype, uint64_t random_seed) {
             return FlatLowRankOptions{rank, std::move(absent), warm_start, factor_dtype,
                                       random_seed};
           }),
           py::kw_only(), py::arg("rank") = flat.rank, py::arg("absent"),
           py::arg("warm_start") = flat.warm_start, py::arg("factor_dtype") = py::none(),
           py::arg("random_seed") = flat.seed)
      .def_readonly("warm_start", &FlatLowRankOptions::warm_start)
      .def_readonly("random_seed", &FlatLowRankOptions::seed);
}

}  // namespace

void bind_hook_options(py::module_& module) {
  py::class_<HookFactory>(module, "HookFactory", "An algorithm and its options.");
  bind_compressing(module);
  bind_codec_options(module);
  bind_low_rank(module);

  module.def(
      "compressing_hook",
      [](const CompressingOptions& options, const CompressorOptions& compressor) {
        return HookFactory{compressing_hook(options, compressor)};
      },
      py::arg("options"), py::arg("compressor"));
  module.def(
      "dense_hook",
      [](std::optional<at::ScalarType> dtype) { return HookFactory{dense_hook(dtype)}; },
      py::arg("dtype"));
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
