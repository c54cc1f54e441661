#include "transport/bootstrap/late_ranks.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/log.h"

namespace q7x2 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A rank warns of others that are late after half of its timeout, within these bounds, but not
// later than half-way to the deadline. In larger groups only rank 0 warns.
constexpr milliseconds kLeastPatience{500};
constexpr milliseconds kMostPatience{10'000};
constexpr int kMostSpeakers = 64;
// So long before the warning, ranks that are late are asked whom they wait for; and from then on
// so often.
constexpr milliseconds kAnswerTakes{200};
constexpr milliseconds kAsksAgain{400};

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  const char* separator = " ";
  for (const int rank : ranks) {
    text += separator + std::to_string(rank);
    separator = ", ";
  }
  return text;
}

LateRanks::LateRanks(Options options) : options_(std::move(options)) {}

void LateRanks::begin(TimePoint deadline) {
  const bool speaks = options_.rank == 0 || options_.size <= kMostSpeakers;
  if (!speaks) {
    warns_at_ = asks_at_ = TimePoint::max();
    return;
  }
  const auto now = Clock::now();
  const auto patience =
      std::clamp<milliseconds>(options_.timeout / 2, kLeastPatience, kMostPatience);
  warns_at_ = std::min(now + patience, now + (deadline - now) / 2);
  asks_at_ = warns_at_ - kAnswerTakes;
}

void LateRanks::look(TimePoint now, const Missing& missing) {
  if (now >= asks_at_) {
    asks_at_ = now + kAsksAgain;
    if (options_.monitor != nullptr) options_.monitor->ask(missing());
  }
  if (now < warns_at_) {
    return;
  }
  warns_at_ = TimePoint::max();
  const std::vector<int> ranks = missing();
  log(Level::kWarn, "group '" + options_.group + "': rank " + std::to_string(options_.rank) +
                        " of " + std::to_string(options_.size) + " waits for " + list_ranks(ranks) +
                        ", which " + (ranks.size() == 1 ? "is" : "are") +
                        " late in making the group" + behind(ranks));
}

std::string LateRanks::describe(const std::vector<int>& ranks, const std::string& what) const {
  std::string text = list_ranks(ranks) + what + " within the timeout of " +
                     std::to_string(options_.timeout.count()) + " ms";
  for (const int rank : ranks) {
    text += options_.explain(rank);
  }
  return text + behind(ranks);
}

// A rank that is late may itself wait for another one elsewhere.
std::string LateRanks::behind(const std::vector<int>& ranks) const {
  std::set<std::string> texts;
  for (const int rank : ranks) {
    if (options_.monitor != nullptr) texts.insert(options_.monitor->late_behind(rank));
  }
  return std::accumulate(texts.begin(), texts.end(), std::string());
}

}  // namespace q7x2
