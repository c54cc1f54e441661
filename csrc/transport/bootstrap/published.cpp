#include "transport/bootstrap/published.h"

namespace q7x2 {
namespace {

std::string place(const std::string& kind, const Seat& seat) {
  return kind + "/" + std::to_string(seat.rank) + "/" + std::to_string(seat.world_size) + "/" +
         seat.attempt + "/" + seat.group;
}

}  // namespace

std::string publish(const JobSecret& secret, const std::string& kind, const Seat& seat,
                    std::string_view text) {
  return secret.seal(place(kind, seat), text);
}

std::string read_published(const JobSecret& secret, const std::string& kind, const Seat& seat,
                           std::string_view sealed) {
  return std::string(secret.open(place(kind, seat), sealed,
                                 "what rank " + std::to_string(seat.rank) + " of group '" +
                                     seat.group + "' publishes (" + kind + ")"));
}

std::vector<std::string> read_all_published(const JobSecret& secret, const std::string& kind,
                                            Seat seat, const std::vector<std::string>& sealed) {
  std::vector<std::string> all;
  for (const std::string& each : sealed) {
    seat.rank = static_cast<int>(all.size());
    all.push_back(read_published(secret, kind, seat, each));
  }
  return all;
}

}  // namespace q7x2
