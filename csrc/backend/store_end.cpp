#include "backend/store_end.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "backend/c10d_store.h"

namespace q7x2 {
namespace {

/// Returns a connected socket, or -1 if the connection fails.
int connect_to(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return -1;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0 && ::connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
      return fd;
    }
    if (fd >= 0) {
      ::close(fd);
    }
  }
  return -1;
}

}  // namespace

void wait_for_end(const c10::intrusive_ptr<c10d::Store>& store,
                  std::chrono::milliseconds patience) {
  const char* kept = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  if (kept != nullptr && std::string_view(kept) == "True") {
    return;
  }
  const auto root = root_of(store);
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(root.get());
  if (tcp == nullptr) {
    return;
  }
  // The server sends nothing without a request, so a readable socket means that the connection has
  // ended.
  const int fd = connect_to(tcp->getHost(), tcp->getPort());
  if (fd >= 0) {
    pollfd server{fd, POLLIN, 0};
    ::poll(&server, 1, static_cast<int>(patience.count()));
    ::close(fd);
  }
}

}  // namespace q7x2
