// BackgroundProbe: measures the rates of a network while the program goes on.
//
// Between far hosts a group is made with latencies and assumed rates, because a connection needs a
// dozen round trips until its rate can be seen. A thread of each rank then makes another group of
// the same processes, and measures with it all that a probe measures. Nothing of that concerns the
// group itself: not its messages, and not its errors.
//
//   group    made | short calls ...          | first long call waits | planned by rates ...
//   thread          pause | probe ............................. found
//
// The thread begins after a pause, so that what a program does first is not disturbed, or as soon
// as somebody waits. Which calls wait follows from their sizes (backend/deferred_rates.h), so all
// ranks plan each call by the same Fabric, whenever each of them learns the rates. A rank that
// misses them, because another one has left, keeps the latencies.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/probe/placement.h"
#include "executor/probe/survey.h"
#include "fabric/fabric.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class BackgroundProbe {
 public:
  /// All ranks of `group` call it, whose Fabric is `latencies`. Throws Error(kTransport) if no
  /// thread can be had.
  static std::shared_ptr<BackgroundProbe> begin(const Group& group,
                                                std::shared_ptr<const Fabric> latencies,
                                                const SurveyOptions& options);
  /// The probe of this process that measures these hosts; null: there is none.
  static std::shared_ptr<BackgroundProbe> of(const Placement& placement);
  /// Ends all probes of this process. Called before the process ends.
  static void stop_all() noexcept;

  /// Ends it. A forked child must not destroy what its parent has made.
  ~BackgroundProbe();
  BackgroundProbe(const BackgroundProbe&) = delete;
  BackgroundProbe& operator=(const BackgroundProbe&) = delete;

  /// What the latencies say of the hosts of another group.
  std::optional<Fabric> part(const Placement& placement) const;
  /// Waits until the rates are known. Null: they will not be. `check` is called now and then, and
  /// may throw to end the wait.
  std::shared_ptr<const Fabric> wait(const std::function<void()>& check);
  /// The same at once; null also if they are not known yet.
  std::shared_ptr<const Fabric> found() const;

 private:
  BackgroundProbe(const Group& group, std::shared_ptr<const Fabric> latencies,
                  const SurveyOptions& options);

  void run();
  /// Returns false if it is to end.
  bool pause();
  std::shared_ptr<const Fabric> measure();
  /// Throws if it shall end.
  void check() const;
  void stop() noexcept;

  const std::shared_ptr<Runtime> runtime_;
  const std::string name_;   // the group's name
  const std::string scope_;  // tells the group from others
  const int rank_;
  const std::vector<PeerInfo> members_;
  const std::shared_ptr<const Fabric> latencies_;
  const SurveyOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  bool is_wanted_ = false;
  bool shall_end_ = false;
  bool is_over_ = false;
  std::shared_ptr<Group> group_;  // measures
  std::shared_ptr<const Fabric> found_;
  std::thread thread_;
};

/// `latencies`, the Fabric of a group, with what `measured` says of its hosts. None if that has
/// other hosts.
std::optional<Fabric> with_rates(const Fabric& latencies, const Fabric& measured);

/// How many bytes a call between these hosts has at least whose Plan depends on rates.
size_t least_long_call(const Fabric& latencies);

}  // namespace q7x2
