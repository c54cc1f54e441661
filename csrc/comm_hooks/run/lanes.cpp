#include "comm_hooks/run/lanes.h"

#include "base/error.h"

namespace q7x2 {

void Lanes::start(Ticket ticket, size_t lane, std::function<void()> start) {
  if (lane >= lanes_.size()) {
    throw Error(ErrorCode::kInternal, "expected at most " + std::to_string(lanes_.size()) +
                                          " collectives of a bucket, one for each lane");
  }
  Lane& chosen = lanes_[lane];
  if (ticket < chosen.turn || !chosen.waiting.emplace(ticket, std::move(start)).second) {
    throw Error(ErrorCode::kInternal, "ticket " + std::to_string(ticket) + " has used lane " +
                                          std::to_string(lane) + " before");
  }
  advance(chosen);
}

void Lanes::leave(Ticket ticket, size_t first_lane) {
  for (size_t i = first_lane; i < lanes_.size(); ++i) {
    if (ticket < lanes_[i].turn) continue;
    lanes_[i].waiting.emplace(ticket, nullptr);
    advance(lanes_[i]);
  }
}

void Lanes::advance(Lane& lane) {
  while (!lane.waiting.empty() && lane.waiting.begin()->first == lane.turn) {
    const std::function<void()> start = std::move(lane.waiting.begin()->second);
    lane.waiting.erase(lane.waiting.begin());
    ++lane.turn;
    if (start) start();
  }
}

}  // namespace q7x2
