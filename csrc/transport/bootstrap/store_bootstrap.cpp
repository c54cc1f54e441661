#include "transport/bootstrap/store_bootstrap.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/parse_number.h"
#include "transport/peer/peer_info.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;

// To find out who is missing takes a question to the store per rank.
constexpr std::chrono::seconds kBetweenNamings{1};
// A wait for another process's memory: it may need this processor.
constexpr microseconds kShortestNap{20};
constexpr microseconds kLongestNap{1000};

}  // namespace

class StoreBootstrap::Heeding {
 public:
  Heeding(StoreBootstrap& bootstrap, const Check& check) : bootstrap_(bootstrap) {
    bootstrap_.check_ = &check;
  }
  ~Heeding() { bootstrap_.check_ = nullptr; }
  Heeding(const Heeding&) = delete;
  Heeding& operator=(const Heeding&) = delete;

 private:
  StoreBootstrap& bootstrap_;
};

StoreBootstrap::StoreBootstrap(KeyStore& store, Options options)
    : store_(store),
      options_([&] {
        if (options.pause == microseconds::zero()) {
          options.pause = StoreWait::pause_of(options.size);
        }
        return std::move(options);
      }()),
      children_(children_of(options_.rank, options_.size, options_.branches)),
      deadline_(Clock::now() + options_.timeout),
      nonce_(random_key()),
      board_(store),
      late_({.rank = options_.rank,
             .size = options_.size,
             .group = options_.group,
             .timeout = options_.timeout,
             .monitor = options_.monitor,
             .explain = options_.explain_missing}),
      wait_(store, late_,
            {.size = options_.size,
             .pause = options_.pause,
             .slice = options_.slice,
             .deadline = deadline_}),
      coming_(options_.size) {}

// ------------------------------------------------------------------------------------- to join

Bootstrap::Met StoreBootstrap::meet(const std::string& mine, const Hooks& hooks) {
  if (options_.size == 1) {
    return {.all = {mine}, .decision = hooks.decide ? hooks.decide({mine}) : ""};
  }
  coming_ = 0;
  peer_info_ = mine;
  hooks_ = hooks;
  Met met = options_.rank == 0 ? lead() : follow();
  committed_ = true;
  return met;
}

Bootstrap::Met StoreBootstrap::lead() {
  for (;;) {
    board_.open(Phase::kOpen, [this](int64_t epoch) { return own_entry(epoch); });
    begin_epoch();
    has_joined_ = true;
    const std::string bundle = *gather("join", own_entry(board_.epoch()), [this](bool is_thorough) {
      return look_as_leader(is_thorough);
    });
    const Roster roster = records_of(bundle);
    for (const auto& [rank, entry] : roster) {
      judge(rank, entry);
    }
    std::string decision;
    if (const auto sound = sound_peer_infos_of(roster); !sound.empty()) {
      if (hooks_.prepare) hooks_.prepare(sound);
      if (hooks_.decide) decision = hooks_.decide(sound);
    }
    if (!board_.advance(Phase::kRoster, pack(encode_list({bundle, decision})))) refuse_superseded();
    if (confirmed(roster)) {
      if (!board_.advance(Phase::kCommitted, std::to_string(options_.size))) refuse_superseded();
      board_.commit();
      return {.all = peer_infos_of(roster), .decision = decision};
    }
  }
}

/// False: another process has joined as one of the ranks since the roster was made.
bool StoreBootstrap::confirmed(const Roster& roster) {
  return gather("ack", "",
                [&](bool is_thorough) {
                  look_as_leader(is_thorough);
                  return store_.check(board_.key("again")) ||
                         (is_thorough && child_was_replaced(roster));
                })
      .has_value();
}

/// Never true: throws where the group cannot be made.
bool StoreBootstrap::look_as_leader(bool) {
  board_.look();
  refuse_superseded();
  watch_children();
  judge_reports();
  heed_losses(/*asks=*/true);
  return false;
}

Bootstrap::Met StoreBootstrap::follow() {
  board_.look();
  for (;;) {
    board_.enter();
    begin_epoch();
    const Phase phase = board_.state().phase;
    if (phase == Phase::kFailed) {
      await_telling();
    } else if (phase == Phase::kOpen || phase == Phase::kRoster) {
      if (auto met = take_part()) return std::move(*met);
    } else {
      await_next_epoch();  // this one was over before this rank came
    }
  }
}

void StoreBootstrap::begin_epoch() {
  watched_.clear();
  reported_.clear();
  orphaned_.reset();
  has_acknowledged_ = false;
  if (options_.monitor != nullptr) {
    options_.monitor->forget();
  }
}

void StoreBootstrap::await_next_epoch() {
  const auto asks = [this] {
    board_.look();
    return board_.is_superseded();
  };
  const auto look = [this](bool) {
    heed_losses(/*asks=*/false);
    return false;
  };
  wait(asks, look, "open", {});
}

/// A rank 0 that has failed stays for a while for those who come later. Whether it is there, or has
/// died long ago, shows when it answers this rank.
void StoreBootstrap::await_telling() {
  store_.set(board_.key("join", options_.rank), own_entry(board_.epoch()));
  has_joined_ = true;
  const auto asks = [this] {
    if (const auto told = store_.read(board_.key("told/" + nonce_))) raise(*told);
    board_.look();
    return board_.is_superseded();
  };
  wait(asks, [](bool) { return false; }, "open", {});
}

/// Nothing: there is a later epoch.
std::optional<Bootstrap::Met> StoreBootstrap::take_part() {
  watch_leader();
  store_.set(board_.key("join", options_.rank), own_entry(board_.epoch()));
  has_joined_ = true;
  join_tree();
  Roster roster;
  Met met;
  bool among = false;
  if (!is_over() && board_.state().phase == Phase::kRoster) {
    among = read_roster(roster, met);
    if (among) {
      if (const auto sound = sound_peer_infos_of(roster); !sound.empty() && hooks_.prepare) {
        hooks_.prepare(sound);
      }
      has_acknowledged_ = true;
      store_.set(board_.key("ack", options_.rank), "");
    }
    await_commit(roster, among);
  }
  if (is_over()) {
    return std::nullopt;
  }
  const std::string told_size = board_.body();
  board_.commit();
  if (!among) {
    // Rank 0 was alive after this rank had joined, and goes on with another process.
    over_ = true;
    throw error(ErrorCode::kMismatch,
                options_.rank < parse_number<int>(told_size).value_or(0)
                    ? "another process joined as rank " + std::to_string(options_.rank) + " too"
                    : "rank 0 was told a world size of " + told_size + ", this rank " +
                          std::to_string(options_.size));
  }
  met.all = peer_infos_of(roster);
  return met;
}

/// Until there is a roster, or another epoch. Once there is one it is too late: it has this rank's
/// predecessor, or none.
void StoreBootstrap::join_tree() {
  const auto has_moved_on = [this] {
    board_.look();
    return is_over() || board_.state().phase != Phase::kOpen;
  };
  const auto look = [this](bool) {
    watch_children();
    report_losses();
    return false;
  };
  if (board_.state().phase != Phase::kOpen) return;
  const auto look_at_all = [&](bool is_thorough) { return has_moved_on() || look(is_thorough); };
  if (gather("join", own_entry(board_.epoch()), look_at_all)) {
    wait(has_moved_on, look, "join", members());
  }
}

bool StoreBootstrap::read_roster(Roster& roster, Met& met) {
  std::vector<std::string> parts = decode_list(unpack(board_.body()));
  if (parts.size() != 2) refuse_bytes();
  roster = records_of(parts[0]);
  met.decision = std::move(parts[1]);
  const auto entry = roster.find(options_.rank);
  return entry != roster.end() && entry->second.nonce == nonce_;
}

/// `among`: this rank has acknowledged the roster.
void StoreBootstrap::await_commit(const Roster& roster, bool among) {
  const auto has_moved_on = [this] {
    board_.look();
    return is_over() || board_.state().phase != Phase::kRoster;
  };
  const auto look = [&](bool is_thorough) {
    if (is_thorough && among && child_was_replaced(roster)) {
      store_.set(board_.key("again"), "");
    }
    watch_children();
    report_losses();
    return false;
  };
  const auto look_at_all = [&](bool is_thorough) { return has_moved_on() || look(is_thorough); };
  if (!among || gather("ack", "", look_at_all)) {
    wait(has_moved_on, look, "ack", members());
  }
}

/// True: there is a later epoch. Throws what has ended this one.
bool StoreBootstrap::is_over() {
  if (board_.is_superseded()) return true;
  const Phase phase = board_.state().phase;
  if (phase == Phase::kFailed || phase == Phase::kOrphaned) raise(board_.body());
  return false;
}

/// Rank 0: throws if it does not lead any more.
void StoreBootstrap::refuse_superseded() {
  if (is_over()) {
    over_ = true;  // the others go on without this process
    throw error(ErrorCode::kMismatch, "another process joined as rank 0 after this one", 0);
  }
}

// ------------------------------------------------------------------------------ what comes later

std::vector<std::string> StoreBootstrap::exchange(const std::string& what, const std::string& mine,
                                                  const Check& check) {
  if (options_.size == 1) {
    return {mine};
  }
  const std::string name = "x/" + what;
  const Heeding heeding(*this, check);
  const std::string own = encode_entry(options_.rank, sealed(what, mine, board_.epoch()));
  if (options_.rank != 0) {
    store_.set(board_.key(name, options_.rank), own);
  }
  const std::string bundle =
      *gather(name, own, [this](bool is_thorough) { return look_for_failure(is_thorough); });
  if (options_.rank == 0) {
    while (!board_.advance(Phase::kExchanged, pack(bundle), what)) is_over();
    return opened(what, decode_bundle(bundle, options_.size));
  }
  const auto asks = [&] {
    look_for_failure(true);
    return board_.state().phase == Phase::kExchanged && board_.state().what == what;
  };
  wait(
      asks, [](bool) { return false; }, name, members());
  return opened(what, decode_bundle(unpack(board_.body()), options_.size));
}

void StoreBootstrap::finish(const Check& check) {
  if (options_.size == 1) {
    return;
  }
  const Heeding heeding(*this, check);
  if (options_.rank != 0) {
    store_.set(board_.key("done", options_.rank), "");
  }
  auto next_naming = Clock::now() + options_.slice;
  gather("done", "", [&](bool is_thorough) {
    if (options_.rank == 0 && Clock::now() >= next_naming) {
      options_.waits_for(missing_of("done", members()).front());
      next_naming = Clock::now() + kBetweenNamings;
    }
    return look_for_failure(is_thorough);
  });
  if (options_.rank == 0) options_.waits_for(-1);
}

void StoreBootstrap::wait_for(const std::function<int()>& missing, const Check& check) {
  const Heeding heeding(*this, check);
  late_.begin(deadline_);
  auto next_look = Clock::now() + options_.pause;
  auto nap = kShortestNap;
  for (int rank = missing(); rank >= 0; rank = missing()) {
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
    if (Clock::now() < next_look) {
      continue;
    }
    look_up();
    look_for_failure(true);
    late_.look(Clock::now(), [&] { return std::vector<int>{rank}; });
    if (Clock::now() >= deadline_) {
      throw error(ErrorCode::kTimeout, late_.describe({rank}, " joined, but did not go on"), rank);
    }
    next_look = Clock::now() + options_.pause;
  }
}

// --------------------------------------------------------------------------------- how it is done

/// `own` and what all ranks below this one have published as `what`. A rank publishes its own entry
/// before it calls this, so that others can tell who is missing. Nothing where `look` says that it
/// is pointless.
std::optional<std::string> StoreBootstrap::gather(const std::string& what, const std::string& own,
                                                  const Look& look) {
  if (children_.empty()) {
    return own;
  }
  std::vector<std::string> keys;
  for (const int child : children_) {
    const bool leaf = !has_children(child, options_.size, options_.branches);
    keys.push_back(board_.key(leaf ? what : what + "/below", child));
  }
  if (!wait([&] { return store_.check(keys); }, look, what, members())) {
    return std::nullopt;
  }
  std::string bundle = own;
  for (const std::string& part : store_.get(keys)) {
    bundle += part;
  }
  if (options_.rank != 0) {
    store_.set(board_.key(what + "/below", options_.rank), bundle);
  }
  return bundle;
}

/// True when `asks` says so; false if `look` says that it is pointless. Throws Error(kTimeout),
/// which names those of `ranks` whose key for `what` does not exist, or rank 0.
bool StoreBootstrap::wait(const Asks& asks, const Look& look, const std::string& what,
                          const std::vector<int>& ranks) {
  const auto look_around = [&](bool is_thorough) {
    look_up();
    return look(is_thorough);
  };
  const StoreWait::End end = wait_.run(asks, look_around, [&] { return missing_of(what, ranks); });
  if (end == StoreWait::End::kLate) {
    const std::vector<int> missing = missing_of(what, ranks);
    const char* const did = committed_      ? " joined, but did not go on"
                            : what == "ack" ? " joined, but did not confirm it"
                                            : " did not join";
    throw error(ErrorCode::kTimeout, late_.describe(missing, did), missing.front());
  }
  return end == StoreWait::End::kDone;
}

Error StoreBootstrap::error(ErrorCode code, const std::string& text, int rank) const {
  return {code, cannot_make(options_.rank, options_.size, options_.group) + ": " + text, rank};
}

}  // namespace q7x2
