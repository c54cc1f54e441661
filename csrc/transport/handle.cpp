#include "transport/handle.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "base/error.h"
#include "base/hex.h"
#include "base/parse_number.h"
#include "fabric/host.h"
#include "transport/runtime.h"

namespace q7x2 {
namespace {

constexpr std::string_view kPrefix = "q7x2-handle:2:";
constexpr std::string_view kPlace = "handle";
// A card has some hundred bytes, and more for each network interface.
constexpr size_t kMostBytes = 64 << 10;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              "expected a handle of q7x2 (q7x2.reconfigure_handle()), got '" +
                  std::string(text.substr(0, 40)) + (text.size() > 40 ? "...'" : "'") + ": " + why);
}

}  // namespace

Card card_of_process(Runtime& runtime) {
  Card card;
  card.process = runtime.process();
  card.key = runtime.identity().key;
  card.pid = ::getpid();
  card.host_key = host_key();
  char hostname[256] = {};
  ::gethostname(hostname, sizeof(hostname) - 1);
  card.hostname = hostname;
  card.address = runtime.reactor().worker().address();
  card.beside = runtime.nics_beside();
  card.transports = join_list(runtime.transports());
  card.device_memory = runtime.reactor().device_memory();
  card.heartbeat_address = runtime.heartbeat_address();
  card.sources = runtime.sources();
  Locked locked(runtime.lock());
  card.heartbeat_port = runtime.peers().heartbeat_port(locked);
  return card;
}

Card without_group(const Card& card) {
  Card process = card;
  process.slot = 0;
  process.world_size = 0;
  process.device_path = {};
  process.algorithms.clear();
  process.memory.clear();
  process.renewed.clear();
  return process;
}

std::string Handle::encode(const JobSecret& secret) const {
  const std::string bytes = encode_list({std::to_string(rank), without_group(card).encode()});
  return std::string(kPrefix) + to_hex(secret.seal(kPlace, bytes));
}

Handle Handle::decode(std::string_view text, const JobSecret& secret) {
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
    Handle handle;
    if (fields.size() != 2) {
      refuse(text, "it has " + std::to_string(fields.size()) + " fields, expected 2");
    }
    const auto rank = parse_number<int>(fields[0]);
    if (!rank || *rank < -1) {
      refuse(text, "its rank is '" + fields[0] + "'");
    }
    handle.rank = *rank;
    handle.card = without_group(Card::decode(fields[1]));
    return handle;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) {
      throw;
    }
    refuse(text, error.what());
  }
}

std::vector<Handle> in_rank_order(std::vector<Handle> handles) {
  const auto place = [](const Handle& handle) {
    return std::tuple(handle.rank < 0, handle.rank, handle.card.process);
  };
  std::sort(handles.begin(), handles.end(),
            [&](const Handle& a, const Handle& b) { return place(a) < place(b); });
  return handles;
}

std::string describe_process(const Card& card) {
  return "pid " + std::to_string(card.pid) + " on " + card.hostname;
}

}  // namespace q7x2
