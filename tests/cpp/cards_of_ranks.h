// The cards of the processes that run a test.
#pragma once

#include <vector>

#include "ranks.h"
#include "transport/handle.h"

namespace q7x2::test {

/// By rank. All ranks call it.
inline std::vector<Card> cards_of_ranks(Rank& rank) {
  rank.put("handle",
           Handle{card_of_process(rank.runtime()), rank.rank}.encode(rank.runtime().secret()));
  std::vector<Card> cards;
  for (int r = 0; r < rank.world_size; ++r) {
    cards.push_back(Handle::decode(rank.get(r, "handle"), rank.runtime().secret()).card);
  }
  return cards;
}

}  // namespace q7x2::test
