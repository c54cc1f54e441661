#include "transport/net/interface_names.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

#include "transport/net/nics.h"

namespace q7x2 {
namespace {

/// The names of a directory's entries.
std::set<std::string> names_in(const char* directory) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator(directory, ignored)) {
    names.insert(each.path().filename());
  }
  return names;
}

std::string interfaces_here() {
  std::set<std::string> names = names_in("/sys/class/infiniband");
  for (const Nic& nic : usable_nics()) names.insert(nic.name);
  for (const NicV6& nic : usable_v6_nics()) names.insert(nic.name);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "no interface is up here" : "here are " + list;
}

}  // namespace

std::string why_no_network(const std::string& tls) {
  const char* const devices = std::getenv("UCX_NET_DEVICES");
  if (devices == nullptr) return "UCX_TLS=" + tls + " allows no other, or " + interfaces_here();
  return "UCX_NET_DEVICES=" + std::string(devices) + " names no interface that UCX can use (" +
         interfaces_here() + "), or UCX_TLS=" + tls + " allows no other";
}

}  // namespace q7x2
