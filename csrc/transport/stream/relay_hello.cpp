#include "transport/stream/relay_hello.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace q7x2 {
namespace {

// With its version. The kind follows, and fills eight bytes.
constexpr std::string_view kMagic = "q7x2rly1";
constexpr size_t kJobOffset = 16;
constexpr size_t kNameOffset = 32;

}  // namespace

RelayHello::Name RelayHello::job_with(const JobSecret& secret) {
  Name name{};
  const std::string seal = secret.seal("relay", "");
  std::memcpy(name.data(), seal.data(), std::min(seal.size(), name.size()));
  return name;
}

RelayHello RelayHello::of(Kind kind, const JobSecret& secret, const Identity& process) {
  RelayHello hello;
  hello.kind = kind;
  hello.job = job_with(secret);
  const auto number = std::as_bytes(std::span(&process.process, 1));
  hello.name = prove(secret.key_to(process), "relay", number);
  return hello;
}

RelayHello::Bytes RelayHello::encode() const {
  Bytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  bytes[kMagic.size()] = static_cast<std::byte>(kind);
  std::ranges::copy(job, bytes.begin() + kJobOffset);
  std::ranges::copy(name, bytes.begin() + kNameOffset);
  return bytes;
}

}  // namespace q7x2
