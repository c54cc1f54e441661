#include "transport/stream/stream_lane.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace q7x2 {
namespace {

// Calls of strangers are ended, and those of paths to come are taken, this much later at most.
constexpr std::chrono::milliseconds kListenerPause{50};

}  // namespace

StreamLane::StreamLane(StreamOptions options, const Identity& self, const JobSecret& secret,
                       OnStreamComplete on_complete)
    : options_(std::move(options)),
      self_(self),
      secret_(secret),
      own_key_(secret.key_to(self)),
      on_complete_(std::move(on_complete)),
      matcher_(on_complete_) {}

uint16_t StreamLane::listen(const std::vector<IpAddress>& addresses, uint16_t port) {
  listener_.emplace(
      loop_, self_.process, own_key_, addresses, port, options_,
      [this](const StreamHello& hello) { return judge(hello); },
      [this](const StreamHello& hello, std::unique_ptr<ByteStream> stream) {
        take(hello, std::move(stream));
      });
  return listener_->port();
}

void StreamLane::admit_hosts(const HostAddresses& hosts) {
  if (listener_) listener_->admit_hosts(hosts);
}

void StreamLane::admit_all() {
  if (listener_) listener_->admit_all();
}

void StreamLane::wait_at_relay(const IpEndpoint& relay) {
  const RelayHello hello = RelayHello::of(RelayHello::Kind::kListen, secret_, self_);
  relay_.emplace(loop_, relay, hello, options_,
                 [this](PrivateSocket socket) { listener_->take(std::move(socket)); });
}

StreamListener::Verdict StreamLane::judge(const StreamHello& hello) {
  auto found = paths_.find({hello.sender, hello.epoch});
  if (found == paths_.end() && on_call_) {
    if (on_call_(hello.sender, hello.epoch) == CallFate::kGivenUp) {
      return StreamListener::Verdict::kGivenUp;
    }
    found = paths_.find({hello.sender, hello.epoch});
  }
  if (found == paths_.end()) return StreamListener::Verdict::kWait;
  if (found->second->is_closed()) return StreamListener::Verdict::kGivenUp;
  return found->second->admit(hello) ? StreamListener::Verdict::kTake
                                     : StreamListener::Verdict::kRefuse;
}

void StreamLane::take(const StreamHello& hello, std::unique_ptr<ByteStream> stream) {
  StreamPath& path = *paths_.at({hello.sender, hello.epoch});
  if (!answer(*stream, hello, StreamHello::Turn::kAnswer, options_.bounce_bytes, own_key_)) return;
  path.take(hello, std::move(stream), options_.now());
}

StreamPath& StreamLane::open(const StreamTarget& target) {
  const Key key{target.identity.process, target.epoch};
  if (paths_.contains(key)) throw Error(ErrorCode::kInternal, "a path is opened twice");
  auto& path = paths_[key];
  path = std::make_unique<StreamPath>(
      loop_, options_, self_.process, target, secret_.key_to(target.identity), matcher_,
      on_complete_,
      [this](StreamNotice notice) {
        const auto hear = notices_.find(notice.topic);
        if (hear != notices_.end()) hear->second(std::move(notice));
      },
      [this](StreamPath& dirty) {
        if (std::ranges::find(dirty_, &dirty) == dirty_.end()) dirty_.push_back(&dirty);
      });
  dirty_.push_back(path.get());
  return *path;
}

void StreamLane::close(StreamPath& path) {
  path.close();
  std::erase(dirty_, &path);
  paths_.erase({path.target().identity.process, path.target().epoch});
}

void StreamLane::send(StreamPath& path, void* request, uint64_t tag, const void* data,
                      size_t length) {
  path.send(request, tag, static_cast<const std::byte*>(data), length);
}

bool StreamLane::receive(void* request, uint64_t tag, uint64_t mask, void* data, size_t room) {
  return matcher_.receive(request, tag, mask, static_cast<std::byte*>(data), room);
}

void StreamLane::say_bye() {
  for (const auto& [key, path] : paths_) path->say_bye();
}

uint64_t StreamLane::unacknowledged_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [key, path] : paths_) bytes += path->unacknowledged_bytes();
  return bytes;
}

bool StreamLane::progress() {
  bool has_happened = loop_.dispatch();
  const StreamTime now = options_.now();
  if (listener_ && !listener_->is_idle()) {
    listener_->look(now);
    due_ = std::min(due_, now + kListenerPause);
  }
  if (relay_) {
    relay_->look(now);
    due_ = std::min(due_, relay_->due());
  }
  const bool is_due = now >= due_;
  if (is_due) {
    due_ = StreamTime::max();
    if (listener_ && !listener_->is_idle()) due_ = now + kListenerPause;
    if (relay_) due_ = std::min(due_, relay_->due());
  }
  const std::vector<StreamPath*> dirty = std::exchange(dirty_, {});
  for (StreamPath* const path : dirty) visit(*path, now);
  if (is_due) {
    for (const auto& [key, path] : paths_) visit(*path, now);
  }
  return has_happened || !dirty.empty();
}

void StreamLane::visit(StreamPath& path, StreamTime now) {
  const bool was_closed = path.is_closed();
  path.progress(now);
  if (!path.is_closed()) {
    due_ = std::min(due_, path.due(now));
  } else if (!was_closed && !path.failure().empty() && on_failure_) {
    on_failure_(path);
  }
}

}  // namespace q7x2
