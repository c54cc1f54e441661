#include "transport/ucx/tcp_gate.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "transport/quirks/tcp_sockets.h"

namespace q7x2 {
namespace {

// Usually more connections than arrive between two checks of the number of open files.
constexpr int kSpareFiles = 16;

[[noreturn]] void cannot(const std::string& what) {
  throw Error(ErrorCode::kTransport,
              "a port of UCX could not be " + what + ": " + std::strerror(errno));
}

/// Numbers of the files that this process has open.
std::vector<int> open_files() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  std::vector<int> numbers;
  if (!folder) return numbers;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (entry->d_name[0] != '.') numbers.push_back(std::atoi(entry->d_name));
  }
  return numbers;
}

bool is_listening(int fd) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
         is_tcp(fd);
}

ino_t inode_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

IpEndpoint own_endpoint(int socket) {
  const std::optional<IpEndpoint> own = IpEndpoint::own_of(socket);
  if (!own) cannot("looked at");
  return *own;
}

/// Whether a worker's address contains the port, in network byte order, as UCX writes it.
bool has_port(const std::string& address, int socket) {
  const in_port_t port = htons(own_endpoint(socket).port);
  return address.find(std::string_view(reinterpret_cast<const char*>(&port), sizeof(port))) !=
         std::string::npos;
}

bool is_epoll(int fd) {
  std::array<char, 64> name{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return ::readlink(path.c_str(), name.data(), name.size() - 1) > 0 &&
         std::string_view(name.data()) == "anon_inode:[eventpoll]";
}

/// A listening socket that nobody can connect to, because its name is deleted. Invalid if the name
/// cannot be created in `place`.
OwnedFd unreachable_listener_in(const std::filesystem::path& place) {
  std::string folder = (place / "q7x2-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return OwnedFd();
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = folder + "/s";
  OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool fits = path.size() < sizeof(name.sun_path);
  if (fits) path.copy(name.sun_path, path.size());
  const bool listens =
      fits && socket >= 0 &&
      ::bind(socket, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 &&
      ::listen(socket, 1) == 0;
  ::unlink(path.c_str());
  ::rmdir(folder.c_str());
  return listens ? std::move(socket) : OwnedFd();
}

OwnedFd unreachable_listener() {
  std::error_code ignored;
  OwnedFd socket = unreachable_listener_in(std::filesystem::temp_directory_path(ignored));
  return socket >= 0 ? std::move(socket) : unreachable_listener_in("/dev/shm");
}

bool share_port(int socket, bool on) {
  const int value = on ? 1 : 0;
  return ::setsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &value, sizeof(value)) == 0;
}

/// Stops listening, but stays bound. The kernel takes the port away from a socket for which it had
/// chosen it. So another socket holds the port meanwhile.
void stop_listening(int socket) {
  const IpEndpoint own = own_endpoint(socket);
  const SocketAddress address(own);
  const OwnedFd keeper(::socket(own.address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (keeper < 0 || !share_port(socket, true) || !share_port(keeper, true) ||
      ::bind(keeper, address.get(), address.size()) != 0 || ::shutdown(socket, SHUT_RDWR) != 0) {
    cannot("closed");
  }
  // EINVAL: the socket keeps a port that UCX has chosen (UCX_TCP_PORT_RANGE).
  if (::bind(socket, address.get(), address.size()) != 0 && errno != EINVAL) cannot("kept");
  share_port(socket, false);
}

/// Shuts down connections from other hosts.
void shut_out_others(int worker, const HostAddresses& hosts) {
  for (const Watched& interface : watched_by(worker)) {
    for (const Watched& each : watched_by(interface.fd)) {
      const std::optional<IpEndpoint> peer = IpEndpoint::peer_of(each.fd);
      if (peer && is_tcp(each.fd) && !hosts.contains(peer->address)) {
        ::shutdown(each.fd, SHUT_RDWR);
      }
    }
  }
}

/// Whether this process can open only a few more files. The kernel assigns the lowest free number.
bool are_files_scarce() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const OwnedFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return next < 0 || static_cast<rlim_t>(next + kSpareFiles) >= limit.rlim_cur;
}

}  // namespace

std::set<int> listening_sockets() {
  std::set<int> sockets;
  for (const int fd : open_files()) {
    if (is_listening(fd)) sockets.insert(fd);
  }
  return sockets;
}

TcpGate::TcpGate(const std::set<int>& before, const std::string& address) {
  for (const int fd : listening_sockets()) {
    if (before.contains(fd) || !has_port(address, fd)) continue;
    attach_filter(fd, HostAddresses().filter());
    Listener listener;
    listener.number = fd;
    listener.inode = inode_of(fd);
    listeners_.push_back(std::move(listener));
  }
  if (listeners_.empty()) return;
  for (const int epoll : open_files()) {
    if (!is_epoll(epoll)) continue;
    for (const Watched& each : watched_by(epoll)) {
      const auto found = std::ranges::find(listeners_, each.fd, &Listener::number);
      if (found == listeners_.end()) continue;
      found->epoll = epoll;
      found->watch = each.watch;
    }
  }
  std::ranges::for_each(listeners_, [](Listener& listener) { close(listener); });
}

bool TcpGate::is_there(const Listener& listener) {
  return inode_of(listener.number) == listener.inode;
}

// A handler of UCX may run at any time: it may find no connection to accept, but never an error.
void TcpGate::close(Listener& listener) {
  if (listener.epoll < 0) return;  // it listens, and drops all packets
  const OwnedFd unreachable = unreachable_listener();
  if (unreachable < 0) return;
  listener.socket = OwnedFd(::fcntl(listener.number, F_DUPFD_CLOEXEC, 0));
  if (listener.socket < 0) cannot("closed");
  ::epoll_ctl(listener.epoll, EPOLL_CTL_DEL, listener.number, nullptr);
  if (::dup3(unreachable, listener.number, O_CLOEXEC) < 0 ||
      ::epoll_ctl(listener.epoll, EPOLL_CTL_ADD, listener.number, &listener.watch) != 0) {
    cannot("closed");
  }
  stop_listening(listener.socket);
}

void TcpGate::open(Listener& listener, const HostAddresses& hosts) {
  if (listener.socket < 0) {
    if (is_there(listener)) attach_filter(listener.number, hosts.filter());
    return;
  }
  attach_filter(listener.socket, hosts.filter());
  if (::listen(listener.socket, SOMAXCONN) != 0) cannot("opened");
  ::epoll_ctl(listener.epoll, EPOLL_CTL_DEL, listener.number, nullptr);
  if (::dup3(listener.socket, listener.number, O_CLOEXEC) < 0 ||
      ::epoll_ctl(listener.epoll, EPOLL_CTL_ADD, listener.number, &listener.watch) != 0) {
    cannot("opened");
  }
  listener.socket = OwnedFd();
}

void TcpGate::open(int worker, const HostAddresses& hosts) {
  for (Listener& listener : listeners_) open(listener, hosts);
  if (!is_open_) shut_out_others(worker, hosts);
  is_open_ = true;
}

void TcpGate::heed_files() {
  if (!is_open_ || is_resting_ == are_files_scarce()) return;
  is_resting_ = !is_resting_;
  for (const Listener& listener : listeners_) {
    if (listener.epoll < 0 || !is_there(listener)) continue;
    epoll_event watch = listener.watch;
    if (is_resting_) watch.events = 0;
    ::epoll_ctl(listener.epoll, EPOLL_CTL_MOD, listener.number, &watch);
  }
}

}  // namespace q7x2
