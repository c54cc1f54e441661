#include "bindings/server.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/server.h"
#include "bindings/value_error.h"
#include "transport/stream/relay_hello.h"
#include "transport/trust/job_secret.h"

namespace q7x2 {

namespace py = pybind11;

namespace {

/// The destructor of a server joins threads that may be waiting for the GIL.
struct DeleteWithoutGil {
  void operator()(Server* server) const {
    const py::gil_scoped_release no_gil;
    delete server;
  }
};
using Owner = std::unique_ptr<Server, DeleteWithoutGil>;
using Slots = std::tuple<int, size_t, uint64_t>;

/// None: this process has no secret.
std::optional<py::bytes> relay_job() {
  const JobSecret secret = JobSecret::of_environment();
  if (!secret.is_set()) return std::nullopt;
  const RelayHello::Name name = RelayHello::job_with(secret);
  return py::bytes(reinterpret_cast<const char*>(name.data()), name.size());
}

}  // namespace

void bind_server(py::module_& module) {
  module.def(
      "relay_job", [] { return or_value_error(relay_job); },
      "What the processes with this one's secret say to a relay; None: it has no secret.");
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Server, Owner>(module, "Server",
                            "A process of a job that has no rank, and adds up what ranks send it.")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                       const std::optional<Slots>& slots) {
             return or_value_error([&] {
               const py::gil_scoped_release no_gil;
               SlotPool pool;
               if (slots) pool = std::make_from_tuple<SlotPool>(*slots);
               return Owner(new Server(store, name, std::move(pool)));
             });
           }),
           py::arg("store"), py::arg("name"), py::arg("slots") = py::none(),
           "slots: the pool's file descriptor, the number of this process in it, and the pool's "
           "bytes; None: there is no limit.")
      .def_property_readonly("number", &Server::number, "Its number among the job's servers.")
      .def("look", &Server::look, py::arg("duration"), NoGil(),
           "Looks for groups that want it, for this time. Returns False if the job has ended.")
      .def("leave", &Server::leave, NoGil(), "Leaves all groups in good order.")
      .def("take_news", &Server::take_news, "What has happened since the last call.");
}

}  // namespace q7x2
