#include "bindings/window.h"

#include <optional>
#include <type_traits>
#include <vector>

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/window.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;
using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kUnset = c10d::kUnsetTimeout;

}  // namespace

void bind_window(py::module_& module) {
  using Window = WindowQ7x2;
  using Holder = c10::intrusive_ptr<Window>;
  using Class =
      std::conditional_t<compat::kHasWindow, py::class_<Window, compat::WindowBase, Holder>,
                         py::class_<Window, Holder>>;
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  Class(module, "WindowQ7x2", "Memory of each rank that other ranks write and read.")
      .def(py::init<ProcessGroupQ7x2&>(), "group"_a)
      .def("open", &Window::open, "tensor"_a, "owning"_a, no_gil,
           "All ranks: make the tensor the window.")
      .def(
          "open_shared",
          [](Window& self, const std::vector<int64_t>& sizes, const at::Tensor& like) {
            return self.open_shared(sizes, like.scalar_type());
          },
          "sizes"_a, "like"_a, no_gil,
          "All ranks: make a tensor of that shape, with the element type of `like`, the window.")
      .def("close", &Window::close, no_gil, "All ranks: end the window.")
      .def("is_direct", &Window::is_direct, "rank"_a,
           "Whether this rank copies into the window of that one.")
      .def(
          "put_at",
          [](Window& self, const at::Tensor& tensor, int64_t rank, int64_t offset, bool async_op,
             std::optional<Milliseconds> timeout) {
            return self.put_at(tensor, rank, offset, async_op, timeout.value_or(kUnset));
          },
          "tensor"_a, "rank"_a, "offset"_a, "async_op"_a, "timeout"_a, no_gil)
      .def(
          "get_from",
          [](Window& self, const at::Tensor& tensor, int64_t rank, int64_t offset, bool async_op,
             std::optional<Milliseconds> timeout) {
            return self.get_from(tensor, rank, offset, async_op, timeout.value_or(kUnset));
          },
          "tensor"_a, "rank"_a, "offset"_a, "async_op"_a, "timeout"_a, no_gil)
      .def(
          "signal_to",
          [](Window& self, int64_t rank, bool async_op, std::optional<Milliseconds> timeout) {
            return self.signal_to(rank, async_op, timeout.value_or(kUnset));
          },
          "rank"_a, "async_op"_a, "timeout"_a, no_gil)
      .def(
          "await_signal",
          [](Window& self, int64_t rank, bool async_op, std::optional<Milliseconds> timeout) {
            return self.await_signal(rank, async_op, timeout.value_or(kUnset));
          },
          "rank"_a, "async_op"_a, "timeout"_a, no_gil);
}

}  // namespace q7x2
