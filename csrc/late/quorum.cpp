// What a rank does in a step, depending on the time.
#include "late/quorum.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <string>

namespace q7x2 {
namespace {

constexpr double kNever = -1;
constexpr double kWantsAgain = 1.0;    // seconds between two requests for a state
constexpr int64_t kRemembered = 4096;  // decisions, for ranks that are behind

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds << " s";
  return text.str();
}

}  // namespace

double Quorum::now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::vector<int> Quorum::peers_without(const std::function<bool(int)>& holds) const {
  std::vector<int> missing;
  std::ranges::copy_if(mail_->peers(), std::back_inserter(missing), std::not_fn(holds));
  return missing;
}

struct Quorum::Wait {
  double begun = now();
  double enough = kNever;        // since when there are enough contributions
  double lacking = kNever;       // since when contributions of a proposal are missing here
  std::map<int, double> needed;  // by rank: when it was asked for them
  int takeovers = 0;
  double asked = begun;
  double behind = kNever;  // since when the decision is known but contributions are missing
  double wanted = kNever;
};

Quorum::Quorum(std::shared_ptr<Messenger> mail, Settings settings)
    : mail_(std::move(mail)),
      settings_(std::move(settings)),
      vote_(mail_->rank(), mail_->world_size(), /*leader=*/0),
      begun_(now()) {
  for (const int peer : mail_->peers()) heard_[peer] = 0;
}

void Quorum::resume(int64_t step) {
  if (has_begun_) {
    throw std::runtime_error("load_state_dict() is to be called before the first step()");
  }
  step_ = step;
  for (auto& [peer, furthest] : heard_) furthest = step;
}

Quorum::Closed Quorum::close(Contribution mine) {
  if (!own_.contains(step_)) {
    // After a step that timed out, others may already have this rank's contribution to it.
    contributions_[{step_, mail_->rank()}] = mine;
    own_[step_] = std::move(mine);
    sent_[step_].clear();
  }
  return *take_part(std::numeric_limits<double>::infinity());
}

std::optional<Quorum::Closed> Quorum::take_part(double patience) {
  Wait wait;
  begun_ = wait.begun;
  has_begun_ = true;
  enough_.reset();
  for (const PeerMessage& message : std::exchange(early_, {})) hear(message);
  ask();
  while (true) {
    say(vote_.accept(held()));
    if (const auto& value = vote_.decided(); value && (value->mask & ~held()) == 0) {
      return advance(*value);
    }
    if (arrived_) return jump();
    offer();
    act(wait);
    if (wait.enough == kNever && now() - wait.begun > patience) return std::nullopt;
    receive(timing_.takeover / 4);
  }
}

void Quorum::serve() {
  const int rank = mail_->rank();
  int server = vote_.leader();
  if (is_done_) server = done_.empty() ? rank : std::min(rank, *done_.begin());
  if (rank == server) give_state();
  wanting_.clear();
}

void Quorum::finish() {
  has_begun_ = is_done_ = true;
  const double begun = now();
  double said = kNever;
  const auto say_done = [&] {
    for (const int peer : mail_->peers()) post(peer, {.kind = Header::kDone, .step = step_});
  };
  while (done_.size() < mail_->peers().size()) {
    const double time = now();
    if (time - begun > timing_.timeout) {
      const std::vector<int> missing =
          peers_without([&](int peer) { return done_.contains(peer); });
      throw QuorumTimeout("finish() timed out after " + seconds_text(timing_.timeout) +
                          ", waiting for ranks " + listed(missing));
    }
    if (said == kNever || time - said > timing_.takeover) {
      said = time;
      say_done();
    }
    receive(timing_.takeover);
    serve();
  }
  say_done();
  mail_->finish_sends();
}

// ------------------------------------------------------------------------------------------- time

int64_t Quorum::furthest() const {
  return std::ranges::max_element(heard_, {}, [](const auto& each) { return each.second; })->second;
}

void Quorum::act(Wait& wait) {
  const double time = now();
  if (time - wait.begun > timing_.timeout) {
    const std::vector<int> missing =
        peers_without([&](int peer) { return (held() >> peer & 1) != 0; });
    throw QuorumTimeout("step " + std::to_string(step_) + " timed out after " +
                        seconds_text(timing_.timeout) + ", waiting for ranks " +
                        (missing.empty() ? "that vote" : listed(missing)));
  }
  if (time - wait.asked > timing_.takeover) {
    wait.asked = time;
    ask();
  }
  ask_for_contributions(wait, time);
  if (vote_.decided() || furthest() > step_) {
    catch_up(wait, time);
    return;
  }
  const int size = mail_->world_size();
  const int turn = (mail_->rank() - vote_.leader() - 1 + size) % size;
  if (!is_enough(held())) {
    // This step may need the ranks that are behind.
    if (!wanting_.empty() && time - wait.begun > timing_.takeover * (1 + turn)) give_state();
    return;
  }
  lead(wait, time, turn);
}

// For a step that the others have closed.
void Quorum::catch_up(Wait& wait, double time) {
  if (wait.behind == kNever) wait.behind = time;
  const bool is_far = furthest() > step_ + 1;
  if (!is_far && time - wait.behind <= timing_.takeover) return;
  if (wait.wanted != kNever && time - wait.wanted <= kWantsAgain) return;
  wait.wanted = time;
  for (const int peer : mail_->peers()) post(peer, {.kind = Header::kWant, .step = step_});
}

// For a step with enough contributions.
void Quorum::lead(Wait& wait, double time, int turn) {
  if (wait.enough == kNever) wait.enough = time;
  // Does not wait for a rank that has missed more than one step.
  const bool is_whole = std::ranges::all_of(heard_, [&](const auto& each) {
    return each.second < step_ - 1 || (held() >> each.first & 1) != 0;
  });
  if (is_whole || time - wait.enough >= timing_.grace) say(vote_.lead(held()));
  // Ranks take turns: one of them should succeed before the next one tries.
  const double patience = timing_.grace + timing_.takeover * (1 + turn) * (1 + wait.takeovers);
  if (time - wait.enough > patience) {
    ++wait.takeovers;
    wait.enough = time;
    say(vote_.take_over());
  }
}

void Quorum::ask() {
  for (const int peer : mail_->peers()) post(peer, {.kind = Header::kAsk, .step = step_});
}

// Asks the proposer for contributions of its proposal that have not arrived from their own ranks.
void Quorum::ask_for_contributions(Wait& wait, double time) {
  const int64_t missing = vote_.proposal() ? vote_.proposal()->second.mask & ~held() : 0;
  const int source = vote_.source();
  if (missing == 0 || source == mail_->rank()) return;
  if (wait.lacking == kNever) wait.lacking = time;
  std::vector<double> delays(delays_.begin(), delays_.end());
  std::ranges::sort(delays);
  const size_t half = delays.size() / 2;
  const double median =
      delays.size() % 2 == 1 ? delays[half] : (delays[half - 1] + delays[half]) / 2;
  const double patience = timing_.takeover + median;
  const auto last = wait.needed.find(source);
  if (time - wait.lacking <= patience) return;
  if (last != wait.needed.end() && time - last->second <= patience) return;
  wait.needed[source] = time;
  post(source, {.kind = Header::kNeed, .step = step_, .mask = missing});
}

// ---------------------------------------------------------------------------------- the next step

Quorum::Closed Quorum::advance(VoteValue value) {
  Closed closed{.mask = value.mask, .contributions = {}, .state = {}, .step = step_ + 1};
  for (int rank = 0; rank < mail_->world_size(); ++rank) {
    if (value.mask >> rank & 1) closed.contributions[rank] = contributions_.at({step_, rank});
  }
  decided_[step_] = value;
  decided_.erase(step_ - kRemembered);
  begin(step_ + 1, static_cast<int>(value.leader));
  return closed;
}

Quorum::Closed Quorum::jump() {
  Closed closed{
      .mask = 0, .contributions = {}, .state = std::move(arrived_->data), .step = arrived_->step};
  begin(closed.step, arrived_->leader);
  ask();  // so that all ranks know that this rank is back
  return closed;
}

void Quorum::begin(int64_t step, int leader) {
  step_ = step;
  arrived_.reset();
  vote_ = Vote(mail_->rank(), mail_->world_size(), leader);
  need_.clear();
  const auto is_old = [&](const auto& each) { return each.first < step - 1; };
  std::erase_if(own_, is_old);
  std::erase_if(sent_, is_old);
  std::erase_if(contributions_, [&](const auto& each) { return each.first.first < step; });
  std::erase_if(early_, [&](const PeerMessage& message) { return message.header[1] < step; });
}

}  // namespace q7x2
