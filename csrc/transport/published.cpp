#include "transport/published.h"

namespace q7x2 {
namespace {

std::string place(const std::string& kind, const Seat& seat) {
  return kind + "/" + std::to_string(seat.rank) + "/" + std::to_string(seat.world_size);
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

}  // namespace q7x2
