#include "bindings/fabric.h"

#include "base/error.h"
#include "fabric/json.h"

namespace q7x2 {

namespace py = pybind11;

void bind_fabric(py::module_& module) {
  module.def(
      "canonical_fabric",
      [](const std::string& text) {
        try {
          return to_json(fabric_from_json(text));
        } catch (const Error& error) {
          throw py::value_error(error.what());
        }
      },
      py::arg("text"),
      "Checks the JSON of a Fabric and returns it as q7x2 writes it. Raises ValueError, which "
      "names "
      "the place that is wrong.");
}

}  // namespace q7x2
