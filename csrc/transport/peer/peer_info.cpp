#include "transport/peer/peer_info.h"

#include <algorithm>
#include <array>

#include "base/byte_codec.h"
#include "base/error.h"

namespace q7x2 {
namespace {

constexpr std::string_view kMagic = "q7x2";
constexpr uint32_t kVersion = 15;

constexpr const char* kWhat = "a rank's peer info";

}  // namespace

std::string PeerInfo::encode() const {
  ByteWriter out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(process);
  out.put(key);
  out.put(pid);
  out.put(slot);
  out.put(world_size);
  out.put(host_key);
  out.put(hostname);
  out.put(address);
  out.put(heartbeat_address.bytes());
  out.put(heartbeat_port);
  out.put(stream_port);
  out.put(streams);
  out.put(static_cast<uint8_t>(encrypts_streams ? 1 : 0));
  out.put(static_cast<uint8_t>(behind_nat ? 1 : 0));
  out.put(static_cast<uint32_t>(outside.size()));
  for (const IpAddress& each : outside) out.put(each.bytes());
  out.put(relay.address.bytes());
  out.put(relay.port);
  out.put(sources.encode());
  out.put(static_cast<uint32_t>(rails.size()));
  for (const Nic& nic : rails) {
    out.put(nic.name);
    out.put(nic.address);
    out.put(nic.prefix);
  }
  out.put(transports);
  out.put(device_path);
  out.put(device_memory);
  out.put(algorithms);
  out.put(attached_hook);
  out.put(memory);
  out.put(announcement);
  out.put(encode_renewed(renewed));
  return out.take();
}

PeerInfo PeerInfo::decode(std::string_view bytes) {
  ByteReader in(bytes, kWhat);
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
  peer_info.stream_port = in.get<uint16_t>();
  peer_info.streams =
      in.get_between(StreamChoice::kNever, StreamChoice::kAlways, "a use of many connections");
  peer_info.encrypts_streams = in.get<uint8_t>() != 0;
  peer_info.behind_nat = in.get<uint8_t>() != 0;
  const auto translated = in.get<uint32_t>();
  for (uint32_t i = 0; i < translated; ++i) {
    peer_info.outside.emplace_back(in.get<IpAddress::Bytes>());
  }
  peer_info.relay.address = IpAddress(in.get<IpAddress::Bytes>());
  peer_info.relay.port = in.get<uint16_t>();
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
  peer_info.device_path =
      in.get_between(DevicePath::kAuto, DevicePath::kDirect, "a path of tensors on devices");
  peer_info.device_memory =
      in.get_between(DeviceMemory::kNone, DeviceMemory::kMapped, "a use of devices' memory");
  peer_info.algorithms = in.get_string();
  peer_info.attached_hook = in.get_string();
  peer_info.memory = in.get_string();
  peer_info.announcement = in.get_string();
  peer_info.renewed = decode_renewed(in.get_string());
  in.end();
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
  ByteWriter out;
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
  ByteReader in(bytes, "a rank's list of broken connections");
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
  in.end();
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

bool is_nat_between(const PeerInfo& one, const PeerInfo& other) {
  return one.host_key != other.host_key && (one.behind_nat || other.behind_nat);
}

bool are_both_hidden(const PeerInfo& one, const PeerInfo& other) {
  const auto is_hidden = [](const PeerInfo& each) {
    return each.behind_nat && each.outside.empty();
  };
  return is_hidden(one) && is_hidden(other) && one.host_key != other.host_key;
}

// Two processes behind NAT may be in the same network.
std::vector<IpEndpoint> stream_addresses(const PeerInfo& from, const PeerInfo& to) {
  std::vector<IpEndpoint> all;
  for (const IpAddress& each : to.outside) all.push_back({each, to.stream_port});
  if (!to.behind_nat || from.behind_nat) all.push_back({to.heartbeat_address, to.stream_port});
  return all;
}

bool talk_through_memory(const PeerInfo& one, const PeerInfo& other) {
  return one.host_key == other.host_key && share_memory(one.transports, other.transports);
}

std::string encode_list(const std::vector<std::string>& texts) {
  ByteWriter out;
  for (const std::string& text : texts) {
    out.put(text);
  }
  return out.take();
}

std::vector<std::string> decode_list(std::string_view bytes) {
  ByteReader in(bytes, "a list of texts");
  std::vector<std::string> texts;
  while (!in.at_end()) {
    texts.push_back(in.get_string());
  }
  return texts;
}

}  // namespace q7x2
