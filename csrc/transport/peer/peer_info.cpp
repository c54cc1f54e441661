#include "transport/peer/peer_info.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr std::string_view kMagic = "q7x2";
constexpr uint32_t kVersion = 11;

class Writer {
 public:
  template <typename T>
  void put(T value) {
    std::array<char, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.append(raw.data(), raw.size());
  }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// An enumerator that is at most `last`.
  template <typename Enum>
  Enum get_up_to(Enum last, const char* what) {
    const auto value = get<Enum>();
    if (value > last) {
      throw Error(ErrorCode::kMismatch, "a rank's peer info has " + std::string(what) + " number " +
                                            std::to_string(static_cast<int>(value)));
    }
    return value;
  }
  std::string get_string() { return std::string(next(get<uint32_t>())); }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view next(size_t count) {
    if (count > bytes_.size()) {
      throw Error(ErrorCode::kMismatch, "a rank's peer info is cut short: expected " +
                                            std::to_string(count) + " more bytes, got " +
                                            std::to_string(bytes_.size()));
    }
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }

  std::string_view bytes_;
};

}  // namespace

std::string PeerInfo::encode() const {
  Writer out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(process);
  out.put(key);
  out.put(pid);
  out.put(slot);
  out.put(world_size);
  out.put(std::string_view(host_key));
  out.put(std::string_view(hostname));
  out.put(std::string_view(address));
  out.put(heartbeat_address.bytes());
  out.put(heartbeat_port);
  out.put(std::string_view(sources.encode()));
  out.put(static_cast<uint32_t>(rails.size()));
  for (const Nic& nic : rails) {
    out.put(std::string_view(nic.name));
    out.put(nic.address);
    out.put(nic.prefix);
  }
  out.put(std::string_view(transports));
  out.put(device_path);
  out.put(device_memory);
  out.put(std::string_view(algorithms));
  out.put(std::string_view(memory));
  out.put(std::string_view(encode_renewed(renewed)));
  return out.take();
}

PeerInfo PeerInfo::decode(std::string_view bytes) {
  Reader in(bytes);
  if (in.get_string() != kMagic) {
    throw Error(
        ErrorCode::kMismatch,
        "the store contains something other than a q7x2 peer info for a rank: do all ranks use "
        "the backend q7x2 for this group?");
  }
  if (const auto version = in.get<uint32_t>(); version != kVersion) {
    throw Error(ErrorCode::kMismatch, "ranks run different versions of q7x2: peer info version " +
                                          std::to_string(version) + ", expected " +
                                          std::to_string(kVersion));
  }
  PeerInfo peer_info;
  peer_info.process = in.get<uint64_t>();
  peer_info.key = in.get<ProcessKey>();
  peer_info.pid = in.get<int32_t>();
  if (peer_info.pid <= 0) {
    throw Error(ErrorCode::kMismatch,
                "a rank's peer info has the PID " + std::to_string(peer_info.pid));
  }
  peer_info.slot = in.get<uint16_t>();
  peer_info.world_size = in.get<uint16_t>();
  peer_info.host_key = in.get_string();
  peer_info.hostname = in.get_string();
  peer_info.address = in.get_string();
  peer_info.heartbeat_address = IpAddress(in.get<IpAddress::Bytes>());
  peer_info.heartbeat_port = in.get<uint16_t>();
  peer_info.sources = HostAddresses::decode(in.get_string());
  const auto nics = in.get<uint32_t>();
  for (uint32_t i = 0; i < nics; ++i) {
    Nic nic;
    nic.name = in.get_string();
    nic.address = in.get<uint32_t>();
    nic.prefix = in.get<uint8_t>();
    if (nic.prefix > 32) {
      throw Error(ErrorCode::kMismatch,
                  "a rank's peer info has a network of " + std::to_string(nic.prefix) + " bits");
    }
    peer_info.rails.push_back(std::move(nic));
  }
  peer_info.transports = in.get_string();
  peer_info.device_path = in.get_up_to(DevicePath::kDirect, "a path of tensors on devices");
  peer_info.device_memory = in.get_up_to(DeviceMemory::kMapped, "a use of devices' memory");
  peer_info.algorithms = in.get_string();
  peer_info.memory = in.get_string();
  peer_info.renewed = decode_renewed(in.get_string());
  if (!in.at_end()) {
    throw Error(ErrorCode::kMismatch, "a rank's peer info has bytes left over");
  }
  return peer_info;
}

std::string join_list(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    list += (list.empty() ? "" : ", ") + text;
  }
  return list;
}

HostAddresses PeerInfo::addresses() const {
  HostAddresses all = sources;
  all.add(heartbeat_address);
  for (const Nic& nic : rails) all.add(IpAddress::v4(nic.address));
  return all;
}

PeerInfo::Renewed PeerInfo::connection(uint64_t other) const {
  const auto it = std::find_if(renewed.begin(), renewed.end(),
                               [&](const Renewed& one) { return one.process == other; });
  return it == renewed.end() ? Renewed{.process = other} : *it;
}

std::string encode_renewed(const std::vector<PeerInfo::Renewed>& renewed) {
  Writer out;
  out.put(static_cast<uint32_t>(renewed.size()));
  for (const PeerInfo::Renewed& connection : renewed) {
    out.put(connection.process);
    out.put(connection.incarnation);
    out.put(connection.opened);
    out.put(connection.opened_rail);
  }
  return out.take();
}

std::vector<PeerInfo::Renewed> decode_renewed(std::string_view bytes) {
  Reader in(bytes);
  std::vector<PeerInfo::Renewed> renewed;
  const auto count = in.get<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    PeerInfo::Renewed connection;
    connection.process = in.get<uint64_t>();
    connection.incarnation = in.get<uint32_t>();
    connection.opened = in.get<uint32_t>();
    connection.opened_rail = in.get<uint32_t>();
    renewed.push_back(connection);
  }
  if (!in.at_end()) {
    throw Error(ErrorCode::kMismatch, "a rank's list of broken connections has bytes left over");
  }
  return renewed;
}

std::string describe_process(const PeerInfo& peer_info) {
  return "pid " + std::to_string(peer_info.pid) + " on " + peer_info.hostname;
}

bool share_memory(std::string_view transports, std::string_view others) {
  constexpr std::array<std::string_view, 2> kThroughMemory{"posix", "sysv"};
  return std::ranges::any_of(kThroughMemory, [&](std::string_view name) {
    return transports.find(name) != std::string_view::npos &&
           others.find(name) != std::string_view::npos;
  });
}

bool talk_through_memory(const PeerInfo& one, const PeerInfo& other) {
  return one.host_key == other.host_key && share_memory(one.transports, other.transports);
}

std::string encode_list(const std::vector<std::string>& texts) {
  Writer out;
  for (const std::string& text : texts) {
    out.put(std::string_view(text));
  }
  return out.take();
}

std::vector<std::string> decode_list(std::string_view bytes) {
  Reader in(bytes);
  std::vector<std::string> texts;
  while (!in.at_end()) {
    texts.push_back(in.get_string());
  }
  return texts;
}

}  // namespace q7x2
