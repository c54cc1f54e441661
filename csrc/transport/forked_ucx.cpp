#include "transport/forked_ucx.h"

#include <atomic>
#include <string>

#include "base/error.h"
#include "transport/handle.h"
#include "transport/reach.h"

namespace q7x2 {
namespace {

std::atomic<bool> was_forked{false};

}  // namespace

void note_forked_ucx() {
  was_forked = true;
}

void refuse_tcp_after_fork(const std::vector<Card>& cards, int rank) {
  if (!was_forked) return;
  const Card& mine = cards[static_cast<size_t>(rank)];
  for (size_t other = 0; other < cards.size(); ++other) {
    const Card& card = cards[other];
    if (other == static_cast<size_t>(rank)) continue;
    if (talk_through_memory(mine, card)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) +
                    " was forked from a process that used q7x2, and so it can talk through shared "
                    "memory only, but not with rank " +
                    std::to_string(other) + " (" + describe_process(card) +
                    "): fork before the first group is made, or spawn processes",
                rank);
  }
}

}  // namespace q7x2
