#include "transport/quirks/tcp_sockets.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace q7x2 {

// Parses lines such as "tfd:       17 events:       19 data:     55ddf19e9ad8  pos:0 ino:fb9bb".
std::vector<Watched> watched_by(int epoll) try {
  std::vector<Watched> all;
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(epoll));
  for (std::string line; std::getline(info, line);) {
    std::istringstream words(line);
    std::string label;
    int fd = -1;
    uint32_t events = 0;
    uint64_t data = 0;
    if (words >> label && label == "tfd:" && words >> fd >> label &&
        words >> std::hex >> events >> label && words >> data) {
      all.push_back({fd, {.events = events, .data = {.u64 = data}}});
    }
  }
  return all;
} catch (const std::bad_alloc&) {
  return {};
}

bool is_tcp(int fd) {
  int protocol = 0;
  socklen_t size = sizeof(protocol);
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP;
}

namespace {

bool leads_to(const std::set<IpAddress>& hosts, int socket) {
  const std::optional<IpEndpoint> peer = IpEndpoint::peer_of(socket);
  return peer && hosts.contains(peer->address);
}

}  // namespace

size_t unacknowledged_bytes(int worker, const std::set<IpAddress>& silent) {
  size_t bytes = 0;
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      int left = 0;
      const bool counts = is_tcp(each.fd) && ioctl(each.fd, SIOCOUTQ, &left) == 0 && left > 0 &&
                          !leads_to(silent, each.fd);
      if (counts) bytes += static_cast<size_t>(left);
    }
  }
  return bytes;
}

std::vector<int> sockets_to(int worker, const IpAddress& host) {
  std::vector<int> all;
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      if (is_tcp(each.fd) && leads_to({host}, each.fd)) all.push_back(each.fd);
    }
  }
  return all;
}

std::vector<ConnectionTotals> connection_totals(int worker) {
  std::vector<ConnectionTotals> all;
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      const std::optional<IpEndpoint> own = IpEndpoint::own_of(each.fd);
      const std::optional<IpEndpoint> peer = IpEndpoint::peer_of(each.fd);
      tcp_info info{};
      socklen_t info_size = sizeof(info);
      if (!own || !peer || !is_tcp(each.fd) ||
          getsockopt(each.fd, IPPROTO_TCP, TCP_INFO, &info, &info_size) != 0 ||
          info_size < offsetof(tcp_info, tcpi_sndbuf_limited)) {
        continue;
      }
      const uint64_t busy =
          info.tcpi_busy_time - std::min<uint64_t>(info.tcpi_rwnd_limited, info.tcpi_busy_time);
      all.push_back({.peer = *peer,
                     .local_port = own->port,
                     .acknowledged = info.tcpi_bytes_acked,
                     .busy = busy});
    }
  }
  return all;
}

namespace {

constexpr uint8_t kEstablished = 1;  // TCP_ESTABLISHED, in the numbers of /proc/net/tcp
constexpr uint8_t kConnecting = 2;   // TCP_SYN_SENT

uint64_t inode_of(int socket) {
  struct stat status {};
  return fstat(socket, &status) == 0 ? status.st_ino : 0;
}

/// Parses the kernel's table: words in network order, each printed as a number of this host.
std::optional<IpAddress> address_in_table(const std::string& digits) {
  constexpr size_t kDigits = 8;  // per word
  std::array<uint32_t, 4> words{};
  if (digits.size() != kDigits && digits.size() != kDigits * words.size()) return std::nullopt;
  for (size_t i = 0; i * kDigits < digits.size(); ++i) {
    const char* const word = digits.data() + i * kDigits;
    const auto [end, error] = std::from_chars(word, word + kDigits, words[i], 16);
    if (error != std::errc() || end != word + kDigits) return std::nullopt;
  }
  if (digits.size() == kDigits) return IpAddress::v4(ntohl(words[0]));
  return IpAddress(std::bit_cast<IpAddress::Bytes>(words));
}

/// The targets of connections that are being made, by inode: getpeername does not return them.
std::map<uint64_t, IpEndpoint> targets_of_attempts() {
  std::map<uint64_t, IpEndpoint> targets;
  for (const char* const name : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream table(name);
    for (std::string line; std::getline(table, line);) {
      std::array<char, 33> digits{};
      unsigned port = 0;
      unsigned state = 0;
      unsigned long long inode = 0;
      if (std::sscanf(line.c_str(),
                      " %*d: %*[^:]:%*x %32[^:]:%x %x %*x:%*x %*x:%*x %*x %*d %*d %llu",
                      digits.data(), &port, &state, &inode) != 4 ||
          state != kConnecting) {
        continue;
      }
      if (const auto address = address_in_table(digits.data())) {
        targets[inode] = {*address, static_cast<uint16_t>(port)};
      }
    }
  }
  return targets;
}

PathSample sample_of(const tcp_info& info, bool knows_window) {
  using std::chrono::milliseconds;
  PathSample sample;
  sample.is_connecting = info.tcpi_state == kConnecting;
  sample.acknowledged = info.tcpi_bytes_acked;
  sample.unacknowledged = info.tcpi_unacked;
  sample.probes = info.tcpi_probes;
  sample.retransmissions = info.tcpi_retransmits;
  sample.sent = info.tcpi_data_segs_out;
  sample.sent_again = info.tcpi_total_retrans;
  sample.since_sent = milliseconds(info.tcpi_last_data_sent);
  sample.since_acknowledgement = milliseconds(info.tcpi_last_ack_recv);
  // An old kernel does not report the window. A closed window is acknowledged whenever something is
  // sent.
  sample.is_window_open =
      sample.is_connecting ||
      (knows_window ? info.tcpi_snd_wnd > 0 : info.tcpi_last_ack_recv > info.tcpi_last_data_sent);
  return sample;
}

}  // namespace

std::vector<std::pair<uint64_t, PathSample>> path_samples(int worker) {
  std::vector<std::pair<uint64_t, PathSample>> all;
  std::vector<std::pair<uint64_t, PathSample>> attempts;
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      tcp_info info{};
      socklen_t size = sizeof(info);
      if (!is_tcp(each.fd) || getsockopt(each.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
          size < offsetof(tcp_info, tcpi_delivery_rate) ||
          (info.tcpi_state != kEstablished && info.tcpi_state != kConnecting)) {
        continue;
      }
      PathSample sample = sample_of(info, size >= offsetof(tcp_info, tcpi_snd_wnd) + 4);
      if (sample.is_connecting) {
        attempts.emplace_back(inode_of(each.fd), sample);
      } else if (const std::optional<IpEndpoint> peer = IpEndpoint::peer_of(each.fd)) {
        sample.peer = *peer;
        all.emplace_back(inode_of(each.fd), sample);
      }
    }
  }
  if (!attempts.empty()) {
    const auto targets = targets_of_attempts();
    for (auto& [inode, sample] : attempts) {
      const auto found = targets.find(inode);
      if (found == targets.end()) continue;
      sample.peer = found->second;
      all.emplace_back(inode, sample);
    }
  }
  return all;
}

}  // namespace q7x2
