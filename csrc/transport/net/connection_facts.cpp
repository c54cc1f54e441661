#include "transport/net/connection_facts.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace q7x2 {

ConnectionFacts ConnectionFacts::of(const std::vector<int>& sockets) {
  constexpr uint8_t kEstablished = 1;
  ConnectionFacts facts;
  uint64_t sent = 0;
  uint64_t again = 0;
  for (const int socket : sockets) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(tcp_info, tcpi_delivery_rate) || info.tcpi_state != kEstablished) {
      continue;
    }
    ++facts.connections;
    sent += info.tcpi_segs_out;
    again += info.tcpi_total_retrans;
    const double round_trip = 1e-6 * info.tcpi_min_rtt;
    const bool is_known = info.tcpi_min_rtt > 0 && info.tcpi_min_rtt != UINT32_MAX;
    if (is_known && (facts.round_trip == 0 || round_trip < facts.round_trip)) {
      facts.round_trip = round_trip;
    }
  }
  if (sent > 0) facts.sent_again = static_cast<double>(again) / static_cast<double>(sent);
  return facts;
}

}  // namespace q7x2
