#include "bindings/hook_options.h"

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/value_error.h"
#include "comm_hooks/compress/bit_allocation.h"
#include "comm_hooks/compress/composed.h"
#include "comm_hooks/compress/compressing_hook.h"
#include "comm_hooks/compress/gradient_transform.h"
#include "comm_hooks/methods/block_sparse.h"
#include "comm_hooks/run/dense.h"

namespace q7x2 {
namespace {

namespace py = pybind11;

const char* expected(const bool&) {
  return "True or False";
}
const char* expected(const int64_t&) {
  return "an int";
}
const char* expected(const uint64_t&) {
  return "an int from 0 to 2**64 - 1";
}
const char* expected(const double&) {
  return "a number";
}
const char* expected(const std::string&) {
  return "a string";
}
const char* expected(const std::vector<int64_t>&) {
  return "a tuple or a list of ints";
}
const char* expected(const std::vector<std::string>&) {
  return "a tuple or a list of strings";
}
const char* expected(const std::vector<std::pair<uint64_t, std::string>>&) {
  return "a tuple or a list of pairs of an int and a string";
}
const char* expected(const std::optional<at::ScalarType>&) {
  return "a torch.dtype or None";
}

/// Throws py::value_error if the value does not have the option's type.
OptionValue value_of(const OptionField& field, const py::handle& given) {
  return std::visit(
      [&](const auto& preset) -> OptionValue {
        using T = std::decay_t<decltype(preset)>;
        constexpr bool is_number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
        py::detail::make_caster<T> caster;
        const bool fits = !(is_number && py::isinstance<py::bool_>(given)) &&
                          caster.load(given, /*convert=*/std::is_same_v<T, double>);
        if (!fits) {
          throw py::value_error(field.name + " must be " + expected(preset) + ", got " +
                                std::string(py::repr(given)));
        }
        return OptionValue(py::detail::cast_op<T>(caster));
      },
      field.preset);
}

/// Throws py::value_error, with the `owner` of the fields in its message, for an unknown option.
OptionValues values_of(const std::vector<OptionField>& fields, const std::string& owner,
                       const py::dict& given) {
  OptionValues values;
  for (const auto& [key, value] : given) {
    const auto name = py::cast<std::string>(key);
    const OptionField& field = or_value_error([&] { return find_field(fields, owner, name); });
    values[name] = value_of(field, value);
  }
  return values;
}

HookFactory compressing_hook_of(const std::string& compressor, const py::dict& values,
                                const py::dict& compressing, std::vector<bool> whole) {
  return or_value_error([&] {
    const OptionFields<CompressingOptions> fields = compressing_fields();
    CompressingOptions options =
        fields.make(values_of(fields.fields(), "a compressing hook", compressing));
    make_gradient_transform(options.transform, 1);  // throws if the name is unknown
    options.whole = std::move(whole);
    const CompressorKind& kind = find_compressor(compressor);
    return HookFactory{
        compressing_hook(options, kind.with(values_of(kind.fields, kind.name, values)))};
  });
}

void bind_compressing(py::module_& module) {
  py::class_<OptionField>(module, "OptionField", "One option of a hook.")
      .def_readonly("name", &OptionField::name)
      .def_readonly("doc", &OptionField::doc)
      .def_readonly("default", &OptionField::preset)
      .def(
          "check",
          [](const OptionField& self, const py::handle& value) {
            or_value_error([&] { self.check(value_of(self, value)); });
          },
          py::arg("value"));
  py::class_<CompressorKind>(module, "CompressorKind", "A compressor that hooks may have.")
      .def_readonly("name", &CompressorKind::name)
      .def_readonly("doc", &CompressorKind::doc)
      .def_readonly("lanes", &CompressorKind::lanes)
      .def_readonly("fields", &CompressorKind::fields);
  module.def("compressor_kinds", [] {
    const auto kinds = compressor_kinds();
    return std::vector<CompressorKind>(kinds.begin(), kinds.end());
  });
  module.def("compressing_fields", [] { return compressing_fields().fields(); });
  module.def("compressing_hook", &compressing_hook_of, py::arg("compressor"), py::arg("values"),
             py::arg("compressing"), py::arg("whole"));
}

/// Per gradient: the squared norm, and for each choice (bytes, squared error).
using CostRows = std::vector<std::pair<double, std::vector<std::pair<double, double>>>>;

std::vector<std::optional<size_t>> choose_codecs_of(const CostRows& rows) {
  std::vector<GradientCosts> gradients;
  for (const auto& [norm, choices] : rows) {
    GradientCosts& gradient = gradients.emplace_back();
    gradient.norm = norm;
    for (const auto& [bytes, error] : choices) gradient.choices.push_back({bytes, error});
  }
  return choose_codecs(gradients);
}

}  // namespace

void bind_hook_options(py::module_& module) {
  py::class_<HookFactory>(module, "HookFactory", "An algorithm and its options.");
  bind_compressing(module);
  module.def("choose_codecs", &choose_codecs_of, py::arg("gradients"));
  module.def(
      "dense_hook",
      [](std::optional<at::ScalarType> dtype) {
        return HookFactory{
            [dtype](const HookContext& context) { return make_dense(context, dtype); }};
      },
      py::arg("dtype"));
  module.def(
      "block_sparse_hook",
      [](double dense_above) {
        return HookFactory{[dense_above](const HookContext& context) {
          return make_block_sparse(context, dense_above);
        }};
      },
      py::arg("dense_above"));
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
