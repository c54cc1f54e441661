#include "transport/tcp_sockets.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <new>
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

bool leads_to(const std::set<uint32_t>& hosts, int socket) {
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
         peer.sin_family == AF_INET && hosts.contains(ntohl(peer.sin_addr.s_addr));
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

}  // namespace q7x2
