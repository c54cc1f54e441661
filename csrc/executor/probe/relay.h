// Relay: texts of all ranks to the first one, and one text to all, along a binomial tree.
//
//   step 0   1 -> 0   3 -> 2   5 -> 4   7 -> 6
//   step 1   2 -> 0            6 -> 4
//   step 2   4 -> 0
//
// Gathering takes ceil(log2 n) steps, and a rank sends one message. Spreading runs the same steps
// backwards. Ranks stand in the tree by their position in an order, so neighbours in the order,
// such as the ranks of one host, talk first.
#pragma once

#include <string>
#include <vector>

namespace q7x2 {

/// One message of the tree, between two positions.
struct Handover {
  int step = 0;
  int from = 0;
  int to = 0;
  /// The number of texts that it carries when gathering: those of `from` and the next ranks.
  int count = 0;
};

/// The messages of gathering that `position` of `count` sends or receives, in their order.
std::vector<Handover> handovers(int position, int count);

/// What a relay sends and receives by. Both calls block, and throw if the message fails.
class Courier {
 public:
  virtual ~Courier() = default;
  virtual void send(int rank, const std::string& text) = 0;
  virtual std::string receive(int rank) = 0;
};

/// Called by all ranks of `order`, whose position `position` is the caller's. At the first one it
/// returns everybody's text by position, at the others nothing. Throws Error(kMismatch) where what
/// came are not as many texts as it should be.
std::vector<std::string> gather(Courier& courier, const std::vector<int>& order, int position,
                                const std::string& mine);

/// Called by all ranks of `order`: returns the first one's text. `text` counts only there.
std::string spread(Courier& courier, const std::vector<int>& order, int position,
                   const std::string& text);

/// The rank that `spread` gives the text to `position` from; -1 for the first.
int spread_source(const std::vector<int>& order, int position);

}  // namespace q7x2
