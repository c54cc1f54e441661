// How a rank waits for the store and for other ranks, and whom it names if it waits in vain.
#include <algorithm>
#include <numeric>
#include <set>
#include <thread>

#include "base/log.h"
#include "transport/bootstrap/rendezvous.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

// A wait for another process's memory: it may need this processor.
constexpr microseconds kShortestNap{20};
constexpr microseconds kLongestNap{1000};
// A wait for the store asks often at first, the less so the more ranks there are. A nap is a third
// of the time waited so far, so it costs little time. Each look costs the ranks of a host processor
// time that they need to arrive.
constexpr microseconds kFirstPause{200};
constexpr microseconds kFirstPausePerRank{50};
constexpr microseconds kMostFirstPause{5000};
constexpr microseconds kLeastPause{5000};
constexpr microseconds kMostPauseForHosts{20'000};
constexpr microseconds kPausePerRankOfHost{600};
constexpr microseconds kPausePerRank{60};
// A rank warns of others that are late after half of its timeout, within these bounds. To find out
// who is missing takes a call to the store per rank, so in larger groups only rank 0 warns.
constexpr std::chrono::milliseconds kLeastPatience{500};
constexpr std::chrono::milliseconds kMostPatience{10'000};
constexpr int kMostSpeakers = 64;
// So long before the warning, ranks that are late are asked whom they wait for; and from then on
// so often.
constexpr std::chrono::milliseconds kAnswerTakes{200};
constexpr std::chrono::milliseconds kAsksAgain{400};

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  const char* separator = " ";
  for (const int rank : ranks) {
    text += separator + std::to_string(rank);
    separator = ", ";
  }
  return text;
}

}  // namespace

microseconds Rendezvous::pause_of(int size) {
  const microseconds for_hosts =
      std::clamp(size * kPausePerRankOfHost, kLeastPause, kMostPauseForHosts);
  return std::max(for_hosts, size * kPausePerRank);
}

/// True when all `keys` exist; false if `look` says that it is pointless. Throws Error(kTimeout),
/// which names those of `ranks` whose key for `what` does not exist, or rank 0.
bool Rendezvous::wait(const std::vector<std::string>& keys, const Look& look,
                      const std::string& what, const std::vector<int>& ranks) {
  const auto started = Clock::now();
  auto next_look = started + options_.pause;
  auto next_slice = started + options_.slice;
  auto warns_at = warning_due();
  auto asks_at = warns_at == TimePoint::max() ? warns_at : warns_at - kAnswerTakes;
  const microseconds first = std::min(
      std::clamp(options_.size * kFirstPausePerRank, kFirstPause, kMostFirstPause), options_.pause);
  const auto nap = [&] {
    const auto now = Clock::now();
    const auto waited = std::chrono::duration_cast<microseconds>(now - started);
    const auto left = std::chrono::duration_cast<microseconds>(deadline_ - now);
    return std::min(std::max(left, microseconds(0)), std::clamp(waited / 3, first, options_.pause));
  };
  while (!store_.wait(keys, nap())) {
    const auto now = Clock::now();
    if (now >= next_look) {
      next_look = now + options_.pause;
      look_up();
      const bool is_thorough = heard_news() || now >= next_slice;
      if (is_thorough) {
        next_slice = now + options_.slice;
      }
      if (look(is_thorough)) {
        return false;
      }
    }
    if (now >= asks_at) {
      asks_at = now + kAsksAgain;
      ask(missing_of(what, ranks));
    }
    if (now >= warns_at) {
      warns_at = TimePoint::max();
      warn_of(missing_of(what, ranks));
    }
    if (Clock::now() < deadline_) {
      continue;
    }
    throw late(missing_of(what, ranks), committed_      ? " joined, but did not go on"
                                        : what == "ack" ? " joined, but did not confirm it"
                                                        : " did not join");
  }
  return true;
}

/// Those of `ranks` whose key for `what` does not exist, or rank 0.
std::vector<int> Rendezvous::missing_of(const std::string& what, const std::vector<int>& ranks) {
  std::vector<int> missing;
  for (const int r : ranks) {
    if (r != options_.rank && !store_.check(key(what, r))) {
      missing.push_back(r);
    }
  }
  return missing.empty() ? std::vector<int>{0} : missing;
}

Rendezvous::TimePoint Rendezvous::warning_due() const {
  const auto patience =
      std::clamp<std::chrono::milliseconds>(options_.timeout / 2, kLeastPatience, kMostPatience);
  const bool speaks = options_.rank == 0 || options_.size <= kMostSpeakers;
  return speaks ? Clock::now() + patience : TimePoint::max();
}

void Rendezvous::warn_of(const std::vector<int>& ranks) const {
  log(Level::kWarn, "group '" + options_.group + "': rank " + std::to_string(options_.rank) +
                        " of " + std::to_string(options_.size) + " waits for " + list_ranks(ranks) +
                        ", which " + (ranks.size() == 1 ? "is" : "are") +
                        " late in making the group" + late_behind(ranks));
}

// A rank that is late may itself wait for another one elsewhere.
void Rendezvous::ask(const std::vector<int>& ranks) const {
  if (options_.monitor != nullptr) options_.monitor->ask(ranks);
}

std::string Rendezvous::late_behind(const std::vector<int>& ranks) const {
  std::set<std::string> texts;
  for (const int r : ranks) {
    if (options_.monitor != nullptr) texts.insert(options_.monitor->late_behind(r));
  }
  return std::accumulate(texts.begin(), texts.end(), std::string());
}

/// `ranks` have not done what they were waited for.
Error Rendezvous::late(const std::vector<int>& ranks, const std::string& what) const {
  std::string text = list_ranks(ranks) + what + " within the timeout of " +
                     std::to_string(options_.timeout.count()) + " ms";
  for (const int r : ranks) {
    text += options_.explain_missing(r);
  }
  return error(ErrorCode::kTimeout, text + late_behind(ranks), ranks.front());
}

int Rendezvous::first_missing(const std::string& what) {
  for (const int r : members()) {
    if (!store_.check(key(what, r))) {
      return r;
    }
  }
  return -1;
}

void Rendezvous::wait_for(const std::function<int()>& missing, const Check& check) {
  const Heeding heeding(*this, check);
  auto next_look = Clock::now() + options_.pause;
  auto warns_at = warning_due();
  auto nap = kShortestNap;
  for (int rank = missing(); rank >= 0; rank = missing()) {
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
    if (Clock::now() < next_look) {
      continue;
    }
    look_up();
    look_for_failure(heard_news());
    if (Clock::now() >= warns_at) {
      warns_at = TimePoint::max();
      warn_of({rank});
    }
    if (Clock::now() >= deadline_) {
      throw late({rank}, " joined, but did not go on");
    }
    next_look = Clock::now() + options_.pause;
  }
}

}  // namespace q7x2
