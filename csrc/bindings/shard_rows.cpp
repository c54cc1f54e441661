#include "bindings/shard_rows.h"

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/plain_tensors.h"
#include "backend/tensors.h"
#include "bindings/value_error.h"
#include "kernels/cpu/shard_rows.h"

namespace q7x2 {
namespace {

namespace py = pybind11;

/// `least`: minimum number of elements.
const at::Tensor& checked(const at::Tensor& tensor, int64_t least, const char* name) {
  if (!tensor.device().is_cpu() || !is_plain(tensor) || tensor.numel() < least) {
    throw py::value_error(std::string(name) + ": expected a contiguous CPU tensor with at least " +
                          std::to_string(least) + " elements, no negative view");
  }
  return tensor;
}

const at::Tensor& checked_fp32(const at::Tensor& tensor, int64_t least, const char* name) {
  if (tensor.scalar_type() != at::kFloat) {
    throw py::value_error(std::string(name) + ": expected float32, got " +
                          at::toString(tensor.scalar_type()));
  }
  return checked(tensor, least, name);
}

void check_rows(const ShardRows& layout, const at::Tensor& rows, int64_t number) {
  const auto count = static_cast<int64_t>(layout.count());
  if (number < 0 || checked(rows, 0, "rows").numel() != number * count) {
    throw py::value_error("rows: expected " + std::to_string(number) + " rows of " +
                          std::to_string(count) + " elements, got " + std::to_string(rows.numel()) +
                          " elements");
  }
}

std::tuple<at::Tensor, at::Tensor> pack(const ShardRows& layout, const at::Tensor& rows,
                                        int64_t number, double divisor) {
  check_rows(layout, rows, number);
  const DType dtype = reducible_dtype(rows);
  const py::gil_scoped_release no_gil;
  const at::Tensor coded =
      at::empty({number, static_cast<int64_t>(layout.coded_count())}, at::kFloat);
  const at::Tensor whole =
      at::empty({number, static_cast<int64_t>(layout.whole_count())}, rows.scalar_type());
  layout.pack(rows.const_data_ptr(), static_cast<size_t>(number), dtype,
              static_cast<float>(divisor), coded.data_ptr<float>(), whole.mutable_data_ptr());
  return {coded, whole};
}

void unpack(const ShardRows& layout, const at::Tensor& coded, const at::Tensor& whole,
            const at::Tensor& rows, double factor) {
  if (coded.dim() != 2) throw py::value_error("coded: expected two dimensions");
  const int64_t number = coded.size(0);
  check_rows(layout, rows, number);
  checked_fp32(coded, number * static_cast<int64_t>(layout.coded_count()), "coded");
  checked(whole, number * static_cast<int64_t>(layout.whole_count()), "whole");
  const DType dtype = reducible_dtype(rows);
  const DType whole_dtype = reducible_dtype(whole);
  const py::gil_scoped_release no_gil;
  layout.unpack(coded.const_data_ptr<float>(), whole.const_data_ptr(), whole_dtype,
                static_cast<size_t>(number), static_cast<float>(factor), rows.mutable_data_ptr(),
                dtype);
}

std::pair<double, double> subtract_tensors(const at::Tensor& values, const at::Tensor& reference) {
  float* const from = checked_fp32(values, 0, "values").mutable_data_ptr<float>();
  checked_fp32(reference, values.numel(), "reference");
  const py::gil_scoped_release no_gil;
  const SquaredNorms norms =
      subtract(from, reference.const_data_ptr<float>(), static_cast<size_t>(values.numel()));
  return {norms.difference, norms.before};
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const size_t bytes = checked(a, 0, "a").nbytes();
  if (checked(b, 0, "b").nbytes() != bytes || a.scalar_type() != b.scalar_type()) return false;
  const py::gil_scoped_release no_gil;
  return bytes == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), bytes) == 0;
}

}  // namespace

void bind_shard_rows(py::module_& module) {
  py::class_<ShardRows>(module, "ShardRows")
      .def(py::init([](const std::vector<std::tuple<size_t, size_t, bool>>& pieces) {
             std::vector<ShardPiece> made;
             for (const auto& [count, room, is_coded] : pieces) {
               if (room < count) throw py::value_error("room: expected at least the elements");
               made.push_back({count, room, is_coded});
             }
             return std::make_unique<ShardRows>(std::move(made));
           }),
           py::arg("pieces"))
      .def(
          "pack",
          [](const ShardRows& layout, const at::Tensor& rows, int64_t number, double divisor) {
            return or_value_error([&] { return pack(layout, rows, number, divisor); });
          },
          py::arg("rows"), py::arg("number"), py::arg("divisor") = 1.0)
      .def(
          "unpack",
          [](const ShardRows& layout, const at::Tensor& coded, const at::Tensor& whole,
             const at::Tensor& rows, double factor) {
            or_value_error([&] { unpack(layout, coded, whole, rows, factor); });
          },
          py::arg("coded"), py::arg("whole"), py::arg("rows"), py::arg("factor") = 1.0);
  module.def("same_bits", same_bits, py::arg("a"), py::arg("b"));
  module.def("subtract", subtract_tensors, py::arg("values"), py::arg("reference"));
}

}  // namespace q7x2
