#include "transport/bootstrap/peer_address.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "base/error.h"
#include "base/hex.h"
#include "base/parse_number.h"
#include "fabric/host.h"
#include "transport/run/runtime.h"

namespace q7x2 {
namespace {

constexpr std::string_view kPrefix = "q7x2-handle:2:";
constexpr std::string_view kPlace = "handle";
// A peer info has some hundred bytes, and more for each network interface.
constexpr size_t kMostBytes = 64 << 10;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              "expected a handle of q7x2 (q7x2.reconfigure_handle()), got '" +
                  std::string(text.substr(0, 40)) + (text.size() > 40 ? "...'" : "'") + ": " + why);
}

}  // namespace

PeerInfo peer_info_of_process(Runtime& runtime) {
  PeerInfo peer_info;
  peer_info.process = runtime.process();
  peer_info.key = runtime.identity().key;
  peer_info.pid = ::getpid();
  peer_info.host_key = host_key();
  char hostname[256] = {};
  ::gethostname(hostname, sizeof(hostname) - 1);
  peer_info.hostname = hostname;
  peer_info.address = runtime.reactor().worker().address();
  peer_info.rails = runtime.rail_nics();
  peer_info.transports = join_list(runtime.transports());
  peer_info.device_memory = runtime.reactor().device_memory();
  peer_info.heartbeat_address = runtime.heartbeat_address();
  peer_info.sources = runtime.sources();
  Locked locked(runtime.lock());
  peer_info.heartbeat_port = runtime.peers().heartbeat_port(locked);
  runtime.peers().describe_streams(locked, peer_info);
  return peer_info;
}

PeerInfo without_group(const PeerInfo& peer_info) {
  PeerInfo process = peer_info;
  process.slot = 0;
  process.world_size = 0;
  process.device_path = {};
  process.algorithms.clear();
  process.memory.clear();
  process.announcement.clear();
  process.renewed.clear();
  return process;
}

std::string PeerAddress::encode(const JobSecret& secret) const {
  const std::string bytes = encode_list({std::to_string(rank), without_group(peer_info).encode()});
  return std::string(kPrefix) + to_hex(secret.seal(kPlace, bytes));
}

PeerAddress PeerAddress::decode(std::string_view text, const JobSecret& secret) {
  if (!text.starts_with(kPrefix)) {
    refuse(text, "it does not begin with '" + std::string(kPrefix) + "'");
  }
  const std::string_view rest = text.substr(kPrefix.size());
  if (rest.size() < 2 * JobSecret::kSealBytes || rest.size() > 2 * kMostBytes) {
    refuse(text, "its length cannot be");
  }
  const std::string sealed = from_hex(rest);
  if (sealed.empty()) {
    refuse(text, "it is damaged");
  }
  try {
    const std::vector<std::string> fields =
        decode_list(secret.open(kPlace, sealed, "it is damaged, or it"));
    PeerAddress handle;
    if (fields.size() != 2) {
      refuse(text, "it has " + std::to_string(fields.size()) + " fields, expected 2");
    }
    const auto rank = parse_number<int>(fields[0]);
    if (!rank || *rank < -1) {
      refuse(text, "its rank is '" + fields[0] + "'");
    }
    handle.rank = *rank;
    handle.peer_info = without_group(PeerInfo::decode(fields[1]));
    return handle;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) {
      throw;
    }
    refuse(text, error.what());
  }
}

std::vector<PeerAddress> in_rank_order(std::vector<PeerAddress> handles) {
  const auto place = [](const PeerAddress& handle) {
    return std::tuple(handle.rank < 0, handle.rank, handle.peer_info.process);
  };
  std::sort(handles.begin(), handles.end(),
            [&](const PeerAddress& a, const PeerAddress& b) { return place(a) < place(b); });
  return handles;
}

}  // namespace q7x2
