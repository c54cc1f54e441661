#include "executor/probe/announcement.h"

#include <set>

#include "base/error.h"
#include "fabric/host.h"
#include "fabric/json.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {
namespace {

constexpr std::string_view kMagic = "q7x2 rank";
// Longer lists have holes everywhere: nobody binds by them, and files refuse such long texts.
constexpr size_t kLongestCpuList = 1000;

}  // namespace

// The magic and the build stay in front whatever follows: a build must understand as much of all
// others.
std::string Announcement::encode() const {
  return encode_list({std::string(kMagic), build, to_json(binding), known, has_servers ? "1" : ""});
}

Announcement Announcement::decode(std::string_view bytes, const std::string& build,
                                  const std::string& who) {
  const std::vector<std::string> parts = decode_list(bytes);
  if (parts.size() < 2 || parts[0] != kMagic) {
    throw Error(ErrorCode::kMismatch, who + " announces itself as no rank of q7x2 does");
  }
  if (parts[1] != build) {
    throw Error(ErrorCode::kMismatch, "ranks run different builds of q7x2: " + who + " has " +
                                          parts[1].substr(0, 100) + ", rank 0 has " + build);
  }
  if (parts.size() != 5) {
    throw Error(ErrorCode::kMismatch,
                who + " announces " + std::to_string(parts.size()) + " things, expected 5");
  }
  Announcement announcement{parts[1], {}, parts[3], !parts[4].empty()};
  try {
    announcement.binding = binding_from_json(parts[2]);
    parse_cpu_list(announcement.binding.cpus);
  } catch (const Error& error) {
    throw Error(ErrorCode::kMismatch, who + " announces a " + error.what());
  }
  return announcement;
}

Fabric::Binding own_binding() {
  try {
    const std::vector<int> cpus = usable_cpu_list();
    Fabric::Binding binding{numa_node_of_cpus(cpus), cpu_list_text(cpus)};
    if (binding.cpus.size() > kLongestCpuList) binding.cpus.clear();
    return binding;
  } catch (const Error&) {
    return {};  // what is not known costs locality, and nothing else
  }
}

std::vector<int> cores_of_hosts(const std::vector<int>& host_of,
                                const std::vector<Fabric::Binding>& bindings) {
  std::vector<std::set<int>> cpus;
  std::vector<bool> is_unknown;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto host = static_cast<size_t>(host_of[rank]);
    if (host >= cpus.size()) {
      cpus.resize(host + 1);
      is_unknown.resize(host + 1);
    }
    const std::vector<int> own = parse_cpu_list(bindings[rank].cpus);
    if (own.empty()) is_unknown[host] = true;
    cpus[host].insert(own.begin(), own.end());
  }
  std::vector<int> cores;
  for (size_t host = 0; host < cpus.size(); ++host) {
    cores.push_back(is_unknown[host] ? 0 : static_cast<int>(cpus[host].size()));
  }
  return cores;
}

}  // namespace q7x2
