#include "bindings/fabric.h"

#include <pybind11/stl.h>

#include "base/error.h"
#include "executor/probe/survey.h"
#include "fabric/catalogue.h"
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
  module.def(
      "learn_times",
      [](const std::string& text, const std::string& measured) {
        Fabric fabric = fabric_from_json(text);
        fabric.learn(fabric_from_json(measured).tuned);
        return to_json(fabric);
      },
      py::arg("fabric"), py::arg("measured"),
      "The Fabric with the tuned times of another one instead of its own times of the same calls.");
  module.def(
      "remember_times",
      [](const std::string& measured) { remember_times(fabric_from_json(measured)); },
      py::arg("measured"), "Later groups of this process know the tuned times of this Fabric.");
  module.def(
      "catalogue_times",
      [](const std::string& measured) {
        return catalogue_times(fabric_from_json(measured), catalogue_max_age());
      },
      py::arg("measured"),
      "Adds the tuned times of this Fabric to the catalogue's entry of its hosts. Returns False if "
      "there is no entry and the Fabric was not measured.");
}

}  // namespace q7x2
