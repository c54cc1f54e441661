#include "transport/peer/life_line.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <future>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/quiet_thread.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;

/// The process's address in the abstract namespace, and its length.
std::pair<sockaddr_un, socklen_t> address_of(uint64_t process) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                   "q7x2-%016llx", static_cast<unsigned long long>(process));
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                          static_cast<size_t>(length))};
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

OwnedFd new_event() {
  OwnedFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event < 0) {
    throw Error(ErrorCode::kTransport, std::string("eventfd: ") + std::strerror(errno));
  }
  return event;
}

void take_event(int fd) {
  eventfd_t count = 0;
  ::eventfd_read(fd, &count);
}

}  // namespace

/// The objects that only the thread uses.
class LifeLine::Holder {
 public:
  Holder(uint64_t process, const MessageKey& key, const std::vector<IpAddress>& addresses)
      : listener_(process, key, addresses) {
    listen(process);
  }

  HeartbeatListener& listener() { return listener_; }
  bool is_closed() const { return is_closed_; }

  /// Waits until something happens, or `wake` is readable.
  void wait(int wake, Duration period) {
    std::array<pollfd, 3> events{
        {{wake, POLLIN, 0}, {listener_.fd(), POLLIN, 0}, {socket_, POLLIN, 0}}};
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(period);
    const bool is_idle = listener_.is_idle() && watchers_.empty() && is_listening_;
    ::poll(events.data(), is_listening_ ? 3 : 2, is_idle ? -1 : static_cast<int>(limit.count()));
  }
  void look(Clock::time_point now, Duration period) {
    take_watchers();
    if (now >= next_round_) {
      next_round_ = now + period;
      is_listening_ = socket_.is_valid();
      std::erase_if(watchers_, [](const PrivateSocket& watcher) { return has_ended(watcher); });
      listener_.tidy(now);
    } else {
      listener_.look(now);
    }
  }
  void stop() { is_closed_ = true; }
  /// Keeps the calls until `admit_callers`; returns their addresses.
  std::vector<IpAddress> take_admission_calls() {
    std::vector<IpAddress> callers;
    for (HeartbeatListener::AdmissionCall& call : listener_.take_admission_calls()) {
      callers.push_back(call.caller);
      told_.push_back(std::move(call.line));
    }
    return callers;
  }
  /// `count`: how many of the callers that wait are admitted, in the order of their calls.
  void admit_callers(size_t count) {
    told_.erase(told_.begin(), told_.begin() + static_cast<ptrdiff_t>(count));
  }
  void close() {
    take_watchers();  // callers that wait are told too
    for (const PrivateSocket& watcher : watchers_) ::send(watcher, &kLeft, 1, MSG_NOSIGNAL);
    watchers_.clear();
    told_.clear();
    socket_.close();
    listener_.close();
    is_closed_ = true;
  }

 private:
  void listen(uint64_t process) {
    socket_ = PrivateSocket::open(AF_UNIX);
    const auto [address, length] = address_of(process);
    if (socket_.is_valid() &&
        (::bind(socket_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
         ::listen(socket_, SOMAXCONN) != 0)) {
      socket_.close();  // other processes notice the end by a pidfd
    }
    is_listening_ = socket_.is_valid();
  }
  void take_watchers() {
    while (is_listening_) {
      PrivateSocket watcher = socket_.accept();
      if (!watcher.is_valid()) {
        // If files run out, poll would report it again and again, so it pauses until the next
        // round.
        is_listening_ = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        return;
      }
      if (is_of_this_user(watcher)) watchers_.push_back(std::move(watcher));
    }
  }
  static bool has_ended(const PrivateSocket& watcher) {
    char byte = 0;
    const ssize_t count = ::recv(watcher, &byte, 1, 0);
    return count >= 0 || (errno != EAGAIN && errno != EINTR);
  }

  HeartbeatListener listener_;
  PrivateSocket socket_;
  bool is_listening_ = false;
  std::vector<PrivateSocket> watchers_;
  std::deque<PrivateSocket> told_;  // callers that asked for admission
  Clock::time_point next_round_{};
  bool is_closed_ = false;
};

LifeLine::LifeLine(uint64_t process, const MessageKey& key, const std::vector<IpAddress>& addresses,
                   Duration period)
    : wake_(new_event()), news_(new_event()) {
  std::promise<uint16_t> port;
  std::future<uint16_t> given = port.get_future();
  thread_ = quiet_thread(
      "q7x2-life", [this, process, key, addresses, period, answer = std::move(port)]() mutable {
        try {
          own_files({wake_, news_});
          Holder holder(process, key, addresses);
          answer.set_value(holder.listener().port());
          run(holder, period);
        } catch (const std::exception&) {
          answer.set_exception(std::current_exception());
        }
      });
  try {
    port_ = given.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

// Ends without a last message, as if the process had ended.
LifeLine::~LifeLine() {
  if (!is_running()) return;
  tell([](Holder& holder) { holder.stop(); });
  thread_.join();
}

bool LifeLine::is_running() {
  if (thread_.joinable() && home_.is_elsewhere()) {
    // The thread does not exist in a forked child, so it can be neither joined nor detached.
    static_cast<void>(new std::thread(std::move(thread_)));
  }
  return thread_.joinable();
}

void LifeLine::run(Holder& holder, Duration period) noexcept {
  while (!holder.is_closed()) {
    holder.wait(wake_, period);
    try {
      take_turn(holder, period);
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // then tries again
    }
  }
}

void LifeLine::take_turn(Holder& holder, Duration period) {
  take_event(wake_);
  for (;;) {
    Command command;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (commands_.empty()) break;
      command = commands_.front();
    }
    command(holder);
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.pop_front();
  }
  if (holder.is_closed()) return;
  holder.look(Clock::now(), period);
  const std::vector<HeartbeatHello> notices = holder.listener().take_break_notices();
  const std::vector<IpAddress> callers = holder.take_admission_calls();
  if (notices.empty() && callers.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  break_notices_.insert(break_notices_.end(), notices.begin(), notices.end());
  callers_.insert(callers_.end(), callers.begin(), callers.end());
  has_notices_ = !break_notices_.empty();
  has_callers_ = !callers_.empty();
  ::eventfd_write(news_, 1);
}

void LifeLine::tell(Command command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
  }
  ::eventfd_write(wake_, 1);
}

void LifeLine::expect(uint64_t process) {
  tell([process](Holder& holder) { holder.listener().expect(process); });
}

void LifeLine::tell_and_wait(Command command) {
  if (!is_running()) return;
  std::promise<void> done;
  tell([&done, command = std::move(command)](Holder& holder) {
    command(holder);
    done.set_value();
  });
  done.get_future().wait();
}

void LifeLine::open(const std::optional<HostAddresses>& hosts) {
  tell_and_wait([&](Holder& holder) { holder.listener().open(hosts); });
}

void LifeLine::shut() {
  tell_and_wait([](Holder& holder) { holder.listener().shut(); });
}

void LifeLine::hang_up(uint64_t process, uint32_t incarnation) {
  tell([=](Holder& holder) { holder.listener().hang_up(process, incarnation); });
}

std::vector<HeartbeatHello> LifeLine::take_break_notices() {
  if (!has_notices_) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  take_event(news_);
  has_notices_ = false;
  return std::exchange(break_notices_, {});
}

std::vector<IpAddress> LifeLine::take_admission_calls() {
  if (!has_callers_) return {};
  const std::lock_guard<std::mutex> lock(mutex_);
  take_event(news_);
  has_callers_ = false;
  num_taken_ = callers_.size();
  return std::exchange(callers_, {});
}

void LifeLine::admit_callers() {
  tell([count = std::exchange(num_taken_, 0)](Holder& holder) { holder.admit_callers(count); });
}

void LifeLine::close() {
  if (!is_running()) return;
  tell([](Holder& holder) { holder.close(); });
  thread_.join();
}

PrivateSocket connect_to_life_line(uint64_t process) {
  PrivateSocket socket = PrivateSocket::open(AF_UNIX);
  const auto [address, length] = address_of(process);
  if (socket.is_valid() &&
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    socket.close();
  }
  return socket;
}

}  // namespace q7x2
