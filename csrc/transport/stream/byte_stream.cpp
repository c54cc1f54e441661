#include "transport/stream/byte_stream.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "transport/net/congestion.h"

namespace q7x2 {
namespace {

constexpr size_t kFirstWindow = 10;  // packets (RFC 6928)
constexpr size_t kOpenWindow = size_t{256} << 10;
// While more than this waits in the kernel for the window, a socket takes no more.
constexpr int kUnsent = 128 << 10;
// States of Linux's congestion control in which nothing seems to be lost.
constexpr uint8_t kOpen = 0;
constexpr uint8_t kReducedByMark = 2;

/// The congestion window at the next packet, in packets. After a pause Linux halves it for each
/// timeout that has passed (RFC 2861), but only when it sends again.
size_t window_of(const tcp_info& info) {
  size_t window = info.tcpi_snd_cwnd;
  if (info.tcpi_unacked > 0) return window;
  const uint32_t timeout = std::max(info.tcpi_rto / 1000, uint32_t{1});
  const uint32_t halvings = std::min(info.tcpi_last_data_sent / timeout, uint32_t{16});
  return std::max(window >> halvings, std::min(window, kFirstWindow));
}

std::optional<size_t> moved(ssize_t count) {
  if (count >= 0) return static_cast<size_t>(count);
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return 0;
  return std::nullopt;
}

}  // namespace

std::optional<size_t> PlainStream::read(std::span<const iovec> into) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(into.data());
  message.msg_iovlen = into.size();
  const ssize_t count = ::recvmsg(socket_, &message, MSG_DONTWAIT);
  if (count == 0) return std::nullopt;
  return moved(count);
}

std::optional<size_t> PlainStream::write(std::span<const iovec> from) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  return moved(::sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

TcpState TcpState::of(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  TcpState state;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    state.room = state.window = kOpenWindow;
    return state;
  }
  state.segment = std::max<size_t>(info.tcpi_snd_mss, 1);
  state.window = window_of(info) * state.segment;
  state.in_flight = info.tcpi_unacked * state.segment;
  state.unsent = info.tcpi_notsent_bytes;
  const size_t used = state.in_flight + state.unsent;
  state.room = state.window - std::min(used, state.window);
  state.is_healthy = info.tcpi_ca_state == kOpen || info.tcpi_ca_state == kReducedByMark;
  state.rtt = std::chrono::microseconds(info.tcpi_rtt);
  state.since_heard =
      std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
  return state;
}

void prepare_tcp(int socket, const std::string& congestion) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsent, sizeof(kUnsent));
  if (!congestion.empty()) set_congestion(socket, congestion);
}

}  // namespace q7x2
