#include "transport/stream/stream_listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "transport/net/port_range.h"
#include "transport/stream/tls_stream.h"

namespace q7x2 {
namespace {

constexpr size_t kMostPorts = 32;
constexpr int kCallsAtOnce = 64;

void reuse_address(int socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

}  // namespace

StreamListener::StreamListener(EventLoop& loop, uint64_t process, const MessageKey& key,
                               const std::vector<IpAddress>& addresses, uint16_t port,
                               const StreamOptions& options, Admit admit, Take take)
    : loop_(loop),
      process_(process),
      key_(key),
      options_(options),
      admit_(std::move(admit)),
      take_(std::move(take)) {
  if (port != 0) {
    bind_to(addresses, port);
  } else {
    bind_to_any(addresses);
  }
}

void StreamListener::bind_to(const std::vector<IpAddress>& addresses, uint16_t port) {
  port_ = port;
  if (bind(addresses)) return;
  throw Error(ErrorCode::kTransport,
              "port " + std::to_string(port) +
                  " (Q7X2_ADVERTISE) for stream connections: " + std::strerror(errno));
}

void StreamListener::bind_to_any(const std::vector<IpAddress>& addresses) {
  const std::optional<PortRange> range = PortRange::of_environment();
  std::optional<PortTurn> turn;
  if (range) turn.emplace();
  const size_t first = range ? static_cast<size_t>(process_) % range->size() : 0;
  const size_t most = range ? range->size() : kMostPorts;
  for (size_t i = 0; i < most; ++i) {
    port_ = range ? range->at(first + i) : uint16_t{0};
    if (bind(addresses)) return;
    if (errno != EADDRINUSE) break;
  }
  if (range && errno == EADDRINUSE) {
    throw Error(ErrorCode::kTransport, used_up(*range, "stream connections"));
  }
  throw Error(ErrorCode::kTransport,
              std::string("no port for stream connections: ") + std::strerror(errno));
}

/// At the port `port_`, or at one that the kernel chooses if it is 0. False: errno says why. If two
/// processes bind the same port, they find out when they listen at the loopback.
bool StreamListener::bind(const std::vector<IpAddress>& addresses) {
  sockets_.clear();
  const bool is_given = port_ != 0;
  std::vector<IpAddress> all{kLoopback};
  std::ranges::copy_if(addresses, std::back_inserter(all),
                       [](const IpAddress& each) { return each != kLoopback; });
  for (const IpAddress& each : all) {
    Socket& one = sockets_.emplace_back();
    one.socket = PrivateSocket::open(each.family());
    if (!one.socket.is_valid()) return false;
    if (is_given) reuse_address(one.socket);
    const SocketAddress wanted({each, port_});
    if (::bind(one.socket, wanted.get(), wanted.size()) != 0) return false;
    if (sockets_.size() == 1 && !listen(one)) return false;
    const std::optional<IpEndpoint> own = IpEndpoint::own_of(one.socket);
    if (!own) return false;
    port_ = own->port;
  }
  return true;
}

bool StreamListener::listen(Socket& socket) {
  if (socket.is_listening) return true;
  socket.is_listening = ::listen(socket.socket, SOMAXCONN) == 0 &&
                        socket.entry.add(loop_, socket.socket, EPOLLIN, *this);
  return socket.is_listening;
}

void StreamListener::admit_hosts(const HostAddresses& hosts) {
  if (are_all_admitted_) return;
  for (Socket& each : sockets_) {
    attach_filter(each.socket, hosts.filter());
    listen(each);
  }
}

void StreamListener::admit_all() {
  if (std::exchange(are_all_admitted_, true)) return;
  for (Socket& each : sockets_) {
    detach_filter(each.socket);
    listen(each);
  }
}

void StreamListener::on_ready(uint32_t) {
  for (Socket& each : sockets_) accept(each);
}

void StreamListener::accept(Socket& from) {
  for (int i = 0; i < kCallsAtOnce; ++i) {
    PrivateSocket socket = from.socket.accept();
    if (!socket.is_valid()) {
      if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) rest(true);
      return;
    }
    take(std::move(socket));
  }
}

void StreamListener::take(PrivateSocket socket) {
  prepare_tcp(socket, options_.congestion);
  if (waiting_.size() == kMaxWaiting) waiting_.pop_front();
  Call& call = waiting_.emplace_back(*this);
  call.since = options_.now();
  call.stream = make_stream(std::move(socket), options_, StreamEnd::kListener, key_);
  call.is_over = !call.entry.add(loop_, call.stream->fd(), EPOLLIN, call);
}

// Without a file for the next call it would be announced again and again: until the next look.
void StreamListener::rest(bool on) {
  if (on == is_resting_) return;
  is_resting_ = on;
  for (Socket& each : sockets_) each.entry.set(on ? uint32_t{0} : uint32_t{EPOLLIN});
}

void StreamListener::Call::on_ready(uint32_t) {
  owner.hear(*this);
}

void StreamListener::hear(Call& call) {
  const std::array<iovec, 1> rest{
      iovec{call.bytes.data() + call.num_bytes, call.bytes.size() - call.num_bytes}};
  const auto count = call.stream->read(rest);
  if (!count) {
    call.is_over = true;
    call.entry.set(0);
    return;
  }
  call.num_bytes += *count;
  if (call.num_bytes < call.bytes.size()) return;
  call.entry.set(0);  // what follows must not wake anybody
  call.hello = StreamHello::decode(call.bytes, StreamHello::Turn::kCall, key_);
  if (!call.hello || call.hello->receiver != process_) {
    ++refused_;
    call.is_over = true;
  }
}

void StreamListener::look(StreamTime now) {
  rest(false);
  for (Call& call : waiting_) {
    if (!call.is_over && call.hello) decide(call);
    call.is_over = call.is_over || now - call.since >= kPatience;
  }
  waiting_.remove_if([](const Call& call) { return call.is_over; });
}

void StreamListener::decide(Call& call) {
  const Verdict verdict = admit_(*call.hello);
  if (verdict == Verdict::kWait) return;
  call.is_over = true;
  if (verdict == Verdict::kRefuse) {
    ++refused_;
    return;
  }
  call.entry.remove();
  if (verdict == Verdict::kGivenUp) {
    answer(*call.stream, *call.hello, StreamHello::Turn::kBreakNotice, 0, key_);
    return;
  }
  take_(*call.hello, std::move(call.stream));
}

bool answer(ByteStream& stream, const StreamHello& call, StreamHello::Turn turn, uint64_t bounce,
            const MessageKey& key) {
  StreamHello own = call;
  std::swap(own.sender, own.receiver);
  own.bounce = bounce;
  auto bytes = own.encode(turn, key);
  const std::array<iovec, 1> whole{iovec{bytes.data(), bytes.size()}};
  // The first bytes on a connection always find room.
  return stream.write(whole) == bytes.size();
}

}  // namespace q7x2
