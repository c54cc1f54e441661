// The Python module q7x2._C.
#include <string>

#include <torch/version.h>

#include "bindings/backend.h"
#include "bindings/codec.h"
#include "bindings/comm_hooks.h"
#include "bindings/fabric.h"
#include "bindings/info.h"
#include "bindings/late.h"
#include "bindings/ledger.h"
#include "bindings/ledger_feed.h"
#include "bindings/plan.h"
#include "bindings/server.h"
#include "bindings/shard_rows.h"
#include "bindings/window.h"

namespace {

namespace py = pybind11;

// torch's C++ classes change their layout between minor versions. A module built against another
// version would crash instead of raising an error.
void require_torch_of_the_build() {
  const auto running = py::module_::import("torch").attr("__version__").cast<std::string>();
  const std::string built =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  if (running.rfind(built + ".", 0) == 0) return;
  throw py::import_error("q7x2 was built against torch " + built + ", but torch " + running +
                         " is running; build q7x2 again with this torch "
                         "(pip install --no-build-isolation --force-reinstall --no-deps q7x2)");
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  require_torch_of_the_build();
  q7x2::bind_info(module);
  q7x2::bind_fabric(module);
  q7x2::bind_backend(module);
  q7x2::bind_codec(module);
  q7x2::bind_shard_rows(module);
  q7x2::bind_comm_hooks(module);
  q7x2::bind_plan(module);
  q7x2::bind_ledger(module);
  q7x2::bind_ledger_feed(module);
  q7x2::bind_late(module);
  q7x2::bind_server(module);
  q7x2::bind_window(module);
}
