#include "transport/bootstrap/epoch_board.h"

#include <utility>

namespace q7x2 {
namespace {

// Every rank that waits reads the state again and again.
constexpr size_t kLongestBody = 4 << 10;

std::string key_in(int64_t epoch, const std::string& what) {
  return "q7x2/" + std::to_string(epoch) + "/" + what;
}

std::string key_of_body(const EpochState& state) {
  return key_in(state.epoch,
                "body/" + std::to_string(static_cast<int>(state.phase)) + "/" + state.what);
}

}  // namespace

const EpochState& EpochBoard::look() {
  if (auto found = store_.read(state_key_); found && *found != text_) {
    state_ = EpochState::decode(*found);
    text_ = std::move(*found);
  }
  return state_;
}

bool EpochBoard::replace(EpochState next) {
  if (next.body.size() > kLongestBody) {
    store_.set(key_of_body(next), next.body);
    next.is_elsewhere = true;
    next.body.clear();
  }
  const std::string desired = next.encode();
  std::string found = store_.compare_set(state_key_, text_, desired);
  const bool is_replaced = found == desired;
  state_ = is_replaced ? std::move(next) : EpochState::decode(found);
  text_ = std::move(found);
  return is_replaced;
}

void EpochBoard::open(Phase phase, const std::function<std::string(int64_t)>& body) {
  for (bool is_open = false; !is_open;) {
    const int64_t epoch = state_.epoch + 1;
    is_open = replace({.epoch = epoch, .phase = phase, .body = body(epoch)});
  }
  enter();
}

void EpochBoard::commit() {
  state_key_ = key("after");
  text_.clear();
}

bool EpochBoard::advance(Phase phase, const std::string& body, const std::string& what) {
  return replace({.epoch = epoch_, .phase = phase, .what = what, .body = body});
}

std::string EpochBoard::body() {
  return state_.is_elsewhere ? store_.get({key_of_body(state_)}).front() : state_.body;
}

std::string EpochBoard::key(const std::string& what) const {
  return key_in(epoch_, what);
}

std::string EpochBoard::key(const std::string& what, int rank) const {
  return key(what) + "/" + std::to_string(rank);
}

}  // namespace q7x2
