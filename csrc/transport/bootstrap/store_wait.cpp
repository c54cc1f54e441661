#include "transport/bootstrap/store_wait.h"

#include <algorithm>

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

// A pause is a third of the time waited so far, so it costs little time. Each question costs the
// ranks of a host processor time that they need to arrive.
constexpr microseconds kFirstPause{200};
constexpr microseconds kFirstPausePerRank{50};
constexpr microseconds kMostFirstPause{5000};
constexpr microseconds kMostReaction{25'000};
constexpr microseconds kLeastPause{5000};
constexpr microseconds kMostPauseForHosts{10'000};
constexpr microseconds kPausePerRankOfHost{200};
constexpr microseconds kPausePerRank{20};

}  // namespace

microseconds StoreWait::pause_of(int size) {
  const microseconds for_hosts =
      std::clamp(size * kPausePerRankOfHost, kLeastPause, kMostPauseForHosts);
  return std::max(for_hosts, size * kPausePerRank);
}

microseconds StoreWait::pause(TimePoint started) const {
  const auto now = Clock::now();
  const auto first = std::min(
      std::clamp(options_.size * kFirstPausePerRank, kFirstPause, kMostFirstPause), options_.pause);
  const auto waited = std::chrono::duration_cast<microseconds>(now - started);
  const auto left = std::chrono::duration_cast<microseconds>(options_.deadline - now);
  return std::clamp(std::clamp(waited / 3, first, options_.pause), microseconds(0),
                    std::max(left, microseconds(0)));
}

StoreWait::End StoreWait::run(const Asks& asks, const Look& look,
                              const LateRanks::Missing& missing) {
  const auto started = Clock::now();
  auto next_look = started + options_.pause;
  auto next_slice = started + options_.slice;
  late_.begin(options_.deadline);
  const auto reaction =
      std::min(std::chrono::duration_cast<microseconds>(answer_takes_ / 4), kMostReaction);
  store_.pause(std::max(pause(started), reaction));
  for (;;) {
    const auto asked = Clock::now();
    const bool is_done = asks();
    const auto now = Clock::now();
    answer_takes_ = now - asked;
    if (is_done) return End::kDone;
    if (now >= next_look) {
      const bool is_thorough = now >= next_slice;
      if (is_thorough) next_slice = now + options_.slice;
      if (look(is_thorough)) return End::kPointless;
      // A look may take several answers.
      next_look = Clock::now() + std::max<Clock::duration>(options_.pause, Clock::now() - now);
    }
    late_.look(now, missing);
    if (Clock::now() >= options_.deadline) return End::kLate;
    store_.pause(pause(started));
  }
}

}  // namespace q7x2
