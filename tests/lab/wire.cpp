// The lines between the sites of a lab with distance: packets in, delayed, shaped, lost, out.
//
//   wire SOCKET SEED NAMESPACE...
//
// Each namespace is the router of a site. It gets a TUN device `wan`; what its kernel routes there
// arrives here as IP packets. The destination names the site: 10.77.SITE.x or fd77:0:0:SITE::x. A
// line leads from each site to each other one:
//
//   cut? -> lost? -> [queue of the flow] -> [queue of the line] -> delay + jitter -> cut? -> out
//
// One thread moves all packets. One heap holds them, ordered by the time of their next step.
//
// SOCKET takes one command per connection and answers with one line:
//
//   set FROM TO KEY VALUE...   changes a line, see kSettings; a rate of 0 is no limit
//
//   counts                     what happened to the packets of each line, as JSON
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "wire_line.h"

namespace {

using wire::Line;
using wire::Nanoseconds;

constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr size_t kMaxPacket = 65536;
constexpr int kReadsInARow = 64;  // then the other sites and the heap get their turn
// Packets leave up to this late, and up to 1/200 of the shortest delay, so several leave at once.
constexpr Nanoseconds kMostLate = 500'000;

Nanoseconds now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

int checked(int result, const std::string& what) {
  if (result < 0) throw std::runtime_error(what + ": " + std::strerror(errno));
  return result;
}

struct Packet {
  Nanoseconds at = 0;  // of its next step
  uint64_t order = 0;  // among packets of the same time
  uint64_t number = 0;
  size_t line = 0;
  bool arrives = false;  // else it leaves the queue of its flow
  std::string bytes;

  bool operator<(const Packet& other) const {  // the heap's first is the earliest
    return at != other.at ? at > other.at : order > other.order;
  }
};

class Wire {
 public:
  Wire(const std::string& socket, uint64_t seed, const std::vector<std::string>& namespaces)
      : sites_(namespaces.size()), lines_(sites_ * sites_) {
    for (size_t line = 0; line < lines_.size(); ++line)
      lines_[line].seed = wire::mixed(wire::mixed(seed) + line);
    epoll_ = checked(epoll_create1(EPOLL_CLOEXEC), "epoll");
    const int own = checked(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "own namespace");
    for (const std::string& name : namespaces) add_tun(name);
    checked(setns(own, CLONE_NEWNET), "setns");
    close(own);
    listen_at(socket);
  }

  [[noreturn]] void run() {
    for (;;) {
      std::array<epoll_event, 16> events;
      const int ready = wait(events);
      for (int i = 0; i < ready; ++i) {
        const uint64_t source = events[i].data.u64;
        source < sites_ ? read_packets(source) : answer();
      }
      step();
    }
  }

 private:
  void watch(int fd, uint64_t source) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = source}};
    checked(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  }

  void add_tun(const std::string& name) {
    const int space = checked(open(name.c_str(), O_RDONLY | O_CLOEXEC), name);
    checked(setns(space, CLONE_NEWNET), "setns " + name);
    close(space);
    const int fd = checked(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
    ifreq request{};
    std::strcpy(request.ifr_name, "wan");
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    checked(ioctl(fd, TUNSETIFF, &request), "TUNSETIFF");
    watch(fd, tuns_.size());
    tuns_.push_back(fd);
  }

  void listen_at(const std::string& path) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    if (path.size() >= sizeof(address.sun_path)) throw std::runtime_error(path + ": too long");
    std::strcpy(address.sun_path, path.c_str());
    control_ = checked(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    checked(bind(control_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), path);
    checked(listen(control_, 16), path);
    watch(control_, sites_);
  }

  int wait(std::array<epoll_event, 16>& events) {
    timespec timeout{};
    if (!heap_.empty()) {
      const Nanoseconds left = heap_.front().at - now();
      if (left > 0) {
        timeout.tv_sec = (left + lateness_) / kSecond;
        timeout.tv_nsec = (left + lateness_) % kSecond;
      }
    }
    const int ready = epoll_pwait2(epoll_, events.data(), events.size(),
                                   heap_.empty() ? nullptr : &timeout, nullptr);
    return ready < 0 && errno == EINTR ? 0 : checked(ready, "epoll_pwait2");
  }

  void read_packets(size_t site) {
    for (int i = 0; i < kReadsInARow; ++i) {
      const ssize_t size = read(tuns_[site], buffer_.data(), buffer_.size());
      if (size <= 0) return;
      const std::string_view packet(buffer_.data(), static_cast<size_t>(size));
      const bool is_v4 = (packet[0] & 0xf0) == 0x40;
      if (packet.size() < (is_v4 ? 20 : 40)) continue;
      const size_t to = static_cast<uint8_t>(packet[is_v4 ? 18 : 31]);
      // Multicast, and what the kernel sends to nobody here.
      const bool is_ours =
          is_v4 ? packet.substr(16, 2) == "\x0a\x4d" : packet.substr(24, 2) == "\xfd\x77";
      if (is_ours && to < sites_ && to != site) enter(site * sites_ + to, packet);
    }
  }

  void enter(size_t index, std::string_view bytes) {
    Line& line = lines_[index];
    Nanoseconds time = now();
    Packet packet{.number = line.entered++, .line = index, .bytes = std::string(bytes)};
    if (line.is_down(time)) {
      ++line.cut_off;
    } else if (line.loses(packet.number)) {
      ++line.lost;
    } else if (line.flow_rate == 0) {
      send(std::move(packet), time);
    } else if (line.waits_for_flow(bytes, time)) {
      push(std::move(packet), time);
    }
  }

  void send(Packet packet, Nanoseconds time) {
    Line& line = lines_[packet.line];
    if (!line.waits_for_line(packet.bytes.size(), time)) return;
    time = line.arrival(packet.number, time);
    packet.arrives = true;
    if (line.doubles(packet.number)) {
      ++line.duplicated;
      push(packet, time);
    }
    push(std::move(packet), time);
  }

  void push(Packet packet, Nanoseconds at) {
    packet.at = at;
    packet.order = order_++;
    heap_.push_back(std::move(packet));
    std::push_heap(heap_.begin(), heap_.end());
  }

  /// Does whatever is due.
  void step() {
    for (const Nanoseconds time = now(); !heap_.empty() && heap_.front().at <= time;) {
      std::pop_heap(heap_.begin(), heap_.end());
      Packet packet = std::move(heap_.back());
      heap_.pop_back();
      if (packet.arrives) {
        deliver(packet, time);
      } else {
        const Nanoseconds left = packet.at;
        send(std::move(packet), left);
      }
    }
  }

  void deliver(const Packet& packet, Nanoseconds time) {
    Line& line = lines_[packet.line];
    if (line.is_down(time)) {
      ++line.cut_off;
    } else if (write(tuns_[packet.line % sites_], packet.bytes.data(), packet.bytes.size()) < 0) {
      ++line.refused;
    } else {
      ++line.delivered;
      line.delivered_bytes += packet.bytes.size();
    }
  }

  void answer() {
    const int peer = accept4(control_, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) return;
    const timeval patience{.tv_sec = 1, .tv_usec = 0};
    setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    std::string command;
    for (char c; recv(peer, &c, 1, 0) == 1 && c != '\n';) command += c;
    std::string reply;
    try {
      reply = obey(command);
    } catch (const std::invalid_argument& error) {
      reply = std::string("error: ") + error.what();
    }
    reply += '\n';
    std::ignore = ::send(peer, reply.data(), reply.size(), MSG_NOSIGNAL);
    close(peer);
  }

  std::string obey(const std::string& command) {
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    if (verb == "counts") return counts();
    size_t from = 0, to = 0;
    if (verb != "set" || !(words >> from >> to) || from >= sites_ || to >= sites_) {
      throw std::invalid_argument("not a command: " + command);
    }
    Line& line = lines_[from * sites_ + to];
    std::string key;
    for (double value; words >> key >> value;) {
      const auto setting = wire::kSettings.find(key);
      if (setting == wire::kSettings.end()) throw std::invalid_argument("no such key: " + key);
      line.*setting->second = value;
      if (key == "down") line.flaps_since = now();
    }
    lateness_ = kMostLate;
    for (size_t i = 1; i < lines_.size(); ++i) {
      if (i % (sites_ + 1) == 0) continue;  // from a site to itself
      lateness_ = std::min(lateness_, static_cast<Nanoseconds>(lines_[i].delay / 200));
    }
    return "ok";
  }

  std::string counts() const {
    std::ostringstream text;
    for (size_t i = 1; i < lines_.size(); ++i) {
      if (i % (sites_ + 1) == 0) continue;  // from a site to itself
      text << (i == 1 ? "[" : ", ") << "{\"line\": [" << i / sites_ << ", " << i % sites_ << "]";
      for (const auto& [name, counter] : wire::kCounters) {
        text << ", \"" << name << "\": " << lines_[i].*counter;
      }
      text << "}";
    }
    return text.str() + "]";
  }

  const size_t sites_;
  std::vector<Line> lines_;  // from site A to site B: A * sites + B
  int epoll_ = -1, control_ = -1;
  std::vector<int> tuns_;
  std::vector<Packet> heap_;
  uint64_t order_ = 0;
  Nanoseconds lateness_ = 0;
  std::array<char, kMaxPacket> buffer_;
};

}  // namespace

int main(int count, char** arguments) {
  try {
    Wire wire(arguments[1], std::strtoull(arguments[2], nullptr, 10),
              {arguments + 3, arguments + count});
    setpriority(PRIO_PROCESS, 0, -10);  // it keeps its times while ranks are busy
    std::puts("ready");
    std::fflush(stdout);
    wire.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
