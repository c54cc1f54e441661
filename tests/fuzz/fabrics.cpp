// Fabric files, and what hosts and ranks say of themselves as JSON.
#include "fabric/json.h"
#include "format.h"
#include "random_fabric.h"

namespace q7x2::fuzz {
namespace {

bool read_fabric(std::string_view input, Random&) {
  const Fabric fabric = fabric_from_json(input);
  for (const int host : fabric.host_of) {
    require(host >= 0 && static_cast<size_t>(host) < fabric.hosts.size(), "a rank's host");
  }
  const std::string text = to_json(fabric);
  require(to_json(fabric_from_json(text)) == text, "a Fabric is written otherwise");
  return true;
}

std::string fabric(Random& random) {
  return to_json(random_fabric(1 + static_cast<int>(random() % 5), random()));
}

std::string description(Random&) {
  HostDescription description;
  description.cores = 2;
  description.rates.copy = 1e9;
  description.rates.reduce = 2e9;
  return to_json(description);
}

std::string binding(Random&) {
  return to_json(Fabric::Binding{.numa_node = 1, .cpus = "0-3"});
}

const std::vector<std::string> kWords = {"{",          "}",
                                         "[",          "]",
                                         ",",          ":",
                                         "\"",         "0",
                                         "1",          "-1",
                                         "1e308",      "1e999",
                                         "0.5",        "true",
                                         "null",       "\"\"",
                                         "2147483648", "18446744073709551616",
                                         "hosts",      "ranks",
                                         "links",      "pairs",
                                         "tuned",      "rack",
                                         "cores",      "racks",
                                         "egress",     "\"q7x2_fabric\":1",
                                         "\\u0000",    "[[[[",
                                         "{\"a\":",    "\xff"};

}  // namespace

std::vector<Format> fabric_formats() {
  return {
      {"fabric", 3, fabric, read_fabric, kWords},
      {"host description", 1, description,
       [](std::string_view input, Random&) {
         require(description_from_json(input).cores >= 1, "a host without cores");
         return true;
       },
       kWords},
      {"binding", 1, binding,
       [](std::string_view input, Random&) {
         require(binding_from_json(input).numa_node >= -1, "a NUMA node");
         return true;
       },
       kWords},
  };
}

}  // namespace q7x2::fuzz
