#include "transport/tcp_sockets.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <string>

namespace q7x2 {

// From lines such as "tfd:       17 events:       19 data:     55ddf19e9ad8  pos:0 ino:fb9bb".
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

/// Where a connection over IPv4 leads.
std::optional<sockaddr_in> peer_of(int socket) {
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  const bool is_known = getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
                        peer.sin_family == AF_INET;
  return is_known ? std::optional(peer) : std::nullopt;
}

bool leads_to(const std::set<uint32_t>& hosts, int socket) {
  const std::optional<sockaddr_in> peer = peer_of(socket);
  return peer && hosts.contains(ntohl(peer->sin_addr.s_addr));
}

}  // namespace

bool is_all_acknowledged(int worker, const std::set<uint32_t>& silent) {
  const auto is_acknowledged = [&](const Watched& each) {
    int left = 0;
    return !is_tcp(each.fd) || ioctl(each.fd, SIOCOUTQ, &left) != 0 || left == 0 ||
           leads_to(silent, each.fd);
  };
  const std::vector<Watched> interfaces = watched_by(worker);
  return std::all_of(interfaces.begin(), interfaces.end(), [&](const Watched& interface) {
    const std::vector<Watched> sockets = watched_by(interface.fd);
    return std::all_of(sockets.begin(), sockets.end(), is_acknowledged);
  });
}

std::vector<ConnectionTotals> connection_totals(int worker) {
  std::vector<ConnectionTotals> all;
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      sockaddr_in own{};
      socklen_t own_size = sizeof(own);
      const std::optional<sockaddr_in> peer = peer_of(each.fd);
      tcp_info info{};
      socklen_t info_size = sizeof(info);
      if (!peer || !is_tcp(each.fd) ||
          getsockname(each.fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
          getsockopt(each.fd, IPPROTO_TCP, TCP_INFO, &info, &info_size) != 0 ||
          info_size < offsetof(tcp_info, tcpi_sndbuf_limited)) {
        continue;
      }
      const uint64_t busy =
          info.tcpi_busy_time - std::min<uint64_t>(info.tcpi_rwnd_limited, info.tcpi_busy_time);
      all.push_back({.peer = ntohl(peer->sin_addr.s_addr),
                     .local_port = ntohs(own.sin_port),
                     .peer_port = ntohs(peer->sin_port),
                     .acknowledged = info.tcpi_bytes_acked,
                     .busy = busy});
    }
  }
  return all;
}

}  // namespace q7x2
