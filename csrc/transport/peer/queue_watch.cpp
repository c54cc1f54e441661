#include "transport/peer/queue_watch.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/quirks/process_limits.h"
#include "transport/quirks/shared_memory_limits.h"

namespace q7x2 {
namespace {

constexpr unsigned kQueueId = 3;  // ControlPlane has 0 and 1, BootstrapTable has 2
constexpr std::chrono::milliseconds kPeriod{5};

void ignore(void*, ucp_ep_h, ucs_status_t) {}

/// Why a second worker cannot use the shared memory (UCX may crash); nothing if it can.
std::optional<std::string> obstacle(const std::vector<std::string>& transports) {
  const auto uses = [&](const char* name) {
    return std::ranges::find(transports, name) != transports.end();
  };
  if (uses("posix")) {
    if (auto why = posix_obstacle(/*local_ranks=*/1)) return why;
  }
  return uses("sysv") ? sysv_obstacle() : std::nullopt;
}

bool uses_queue(const std::vector<std::string>& transports) {
  return std::ranges::any_of(transports,
                             [](const auto& name) { return name == "posix" || name == "sysv"; });
}

}  // namespace

QueueWatch::Sender::Sender(Reactor& reactor)
    : worker(reactor.context()), endpoint(worker, reactor.worker().address(), ignore, nullptr) {}

QueueWatch::QueueWatch(Reactor& reactor) : reactor_(reactor) {
  reactor_.on_message(kQueueId, on_message, this);
}

ucs_status_t QueueWatch::on_message(void* arg, const void*, size_t, void*, size_t,
                                    const ucp_am_recv_param_t*) {
  static_cast<QueueWatch*>(arg)->has_arrived_ = true;
  return UCS_OK;
}

void QueueWatch::process_died(Locked&, TimePoint now, const std::string& who) {
  if (is_blocked()) return;
  suspects_ += (suspects_.empty() ? "" : " or ") + who;
  (sender_ ? next_ : due_) = now + kPause;
}

bool QueueWatch::look(Locked& locked, TimePoint now) {
  if (now < due_) return false;
  if (!sender_) {
    send(locked, now);
    return false;
  }
  sender_->worker.progress();
  ++looks_;
  due_ = now + kPeriod;
  const bool gives_up = now >= give_up_ && looks_ >= kFewestLooks;
  if (!has_arrived_ && !gives_up) return false;
  sender_.reset();
  due_ = std::exchange(next_, TimePoint::max());
  if (has_arrived_) {
    if (due_ == TimePoint::max()) suspects_.clear();
    return false;
  }
  due_ = TimePoint::max();
  is_blocked_.store(true, std::memory_order_release);
  return true;
}

void QueueWatch::send(Locked& locked, TimePoint now) {
  due_ = TimePoint::max();
  const std::vector<std::string> transports = reactor_.transports();
  if (!uses_queue(transports)) {
    suspects_.clear();
    return;
  }
  try {
    check_process_limits();
    if (const auto why = obstacle(transports)) throw Error(ErrorCode::kTransport, *why);
    sender_ = std::make_unique<Sender>(reactor_);
    has_arrived_ = false;
    looks_ = 0;
    reactor_.send_message(locked, sender_->endpoint, kQueueId, {});
    give_up_ = now + kPatience;
    due_ = now;
  } catch (const Error& error) {
    suspects_.clear();
    log(Level::kInfo,
        std::string("cannot check whether the queue of shared memory works: ") + error.what());
  }
}

Error QueueWatch::error() const {
  return {ErrorCode::kTransport,
          "messages from other processes of this host no longer arrive, because " + suspects_ +
              " was killed while it wrote one into UCX's shared memory. Groups that are made from "
              "now on use other memory"};
}

}  // namespace q7x2
