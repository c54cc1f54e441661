#include "transport/peer/path_watch.h"

#include <utility>

#include "transport/peer/silence_clock.h"
#include "transport/quirks/tcp_sockets.h"

namespace q7x2 {

std::vector<PathSample> PathWatch::look(TimePoint now, const std::vector<int>& workers,
                                        const std::function<bool(const IpAddress&)>& answers) {
  const PathClock::Duration period = SilenceClock::period(limit_);
  next_look_ = now + period;
  connections_.clear();
  std::vector<PathSample> blocked;
  std::map<uint64_t, PathClock> clocks;
  for (const int worker : workers) {
    for (const auto& [inode, sample] : path_samples(worker)) {
      const auto known = clocks_.find(inode);
      PathClock& clock =
          clocks.emplace(inode, known == clocks_.end() ? PathClock(limit_) : known->second)
              .first->second;
      if (clock.look(sample, now, period, [&] { return answers(sample.peer.address); })) {
        blocked.push_back(sample);
      }
      connections_.push_back(sample);
    }
  }
  clocks_ = std::move(clocks);
  return blocked;
}

}  // namespace q7x2
