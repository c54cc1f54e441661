#include "transport/group/departure.h"

#include <algorithm>

#include "transport/group/membership.h"

namespace q7x2 {

Departure::Departure(int world_size)
    : departed_(static_cast<size_t>(world_size)), last_calls_(static_cast<size_t>(world_size)) {}

bool Departure::is_last_goodbye(int rank, bool comes_twice) {
  return !comes_twice || !half_departed_.insert(rank).second;
}

void Departure::leave(int rank, uint64_t begun, const Unended& unended) {
  departed_[static_cast<size_t>(rank)] = Departed{begun, unended};
  first_missed_ = std::min(first_missed_, begun);
  for (uint64_t i = 0; i < std::min<uint64_t>(unended.size(), begun); ++i) {
    if (unended[i]) first_missed_ = std::min(first_missed_, begun - 1 - i);
  }
}

void Departure::announce(int rank, uint64_t begun) {
  last_calls_[static_cast<size_t>(rank)] = begun;
}

bool Departure::misses(int rank, uint64_t number) const {
  const auto& departed = departed_[static_cast<size_t>(rank)];
  if (!departed) return false;
  if (number >= departed->begun) return true;
  const uint64_t behind = departed->begun - 1 - number;
  return behind < departed->unended.size() && departed->unended[behind];
}

int Departure::find_missing(uint64_t number) const {
  if (number < first_missed_) return -1;
  for (size_t rank = 0; rank < departed_.size(); ++rank) {
    if (misses(static_cast<int>(rank), number)) return static_cast<int>(rank);
  }
  return -1;
}

bool Departure::may_complete(uint64_t number) const {
  return std::ranges::none_of(last_calls_,
                              [&](const auto& begun) { return begun && *begun <= number; });
}

Error left_error(const Membership& members, int rank, const std::string& call) {
  return {ErrorCode::kPeerLeft,
          members.describe(rank) + " has left the group, but " + call + " needs it", rank};
}

}  // namespace q7x2
