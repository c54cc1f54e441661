#include "transport/bootstrap/rendezvous.h"

#include <algorithm>
#include <numeric>

#include "transport/bootstrap/published.h"
#include "transport/bootstrap/rendezvous_records.h"

namespace q7x2 {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

// To find out who is missing takes a call to the store per rank.
constexpr std::chrono::seconds kBetweenNamings{1};
constexpr const char* kPeerInfo = "peer_info";

}  // namespace

Rendezvous::Rendezvous(KeyStore& store, Options options)
    : store_(store),
      options_([&] {
        if (options.pause == microseconds::zero()) options.pause = pause_of(options.size);
        return std::move(options);
      }()),
      children_(children_of(options_.rank, options_.size, options_.branches)),
      deadline_(Clock::now() + options_.timeout),
      nonce_(random_key()),
      coming_(options_.size) {}

std::vector<std::string> Rendezvous::exchange(const std::string& what, const std::string& mine,
                                              const Check& check, const Prepare& prepare) {
  if (options_.size == 1) {
    return {mine};
  }
  if (!committed_) {
    return join(mine, prepare);
  }
  const std::string name = "x/" + what;
  const Heeding heeding(*this, check);
  const Look look = [&](bool is_thorough) { return look_for_failure(is_thorough); };
  const std::string own = encode_entry(options_.rank, sealed(what, mine));
  if (options_.rank != 0) {
    store_.set(key(name, options_.rank), own);
  }
  const std::string bundle = *gather(name, own, look);
  if (options_.rank == 0) {
    store_.set(key(name), pack(bundle));
    return opened(what, decode_bundle(bundle, options_.size));
  }
  wait({key(name)}, look, name, members());
  return opened(what, decode_bundle(unpack(store_.get({key(name)}).front()), options_.size));
}

void Rendezvous::finish(const Check& check, const std::function<void(int)>& waits_for) {
  if (options_.size == 1) {
    return;
  }
  const Heeding heeding(*this, check);
  if (options_.rank != 0) {
    count("done", "all done");
    return;
  }
  auto next_naming = Clock::now() + options_.slice;
  wait(
      {key("all done")},
      [&](bool is_thorough) {
        if (Clock::now() >= next_naming) {
          waits_for(first_missing("done"));
          next_naming = Clock::now() + kBetweenNamings;
        }
        return look_for_failure(is_thorough);
      },
      "done", members());
  waits_for(-1);
}

// ------------------------------------------------------------------------------------- to join

std::vector<std::string> Rendezvous::join(const std::string& mine, const Prepare& prepare) {
  coming_ = 0;
  peer_info_ = mine;
  prepare_ = prepare;
  std::vector<std::string> peer_infos = options_.rank == 0 ? lead() : follow();
  committed_ = true;
  return peer_infos;
}

std::vector<std::string> Rendezvous::lead() {
  for (;;) {
    enter(store_.add(kEpochs, 1));
    const std::string own = own_entry();
    has_joined_ = true;
    store_.set(key("open"), own);
    // Those who wait in the epoch before.
    store_.add(key_in(epoch_ - 1, "news"), 1);
    const std::string bundle = *gather("join", own, [this](bool is_thorough) {
      if (is_thorough) {
        refuse_if_superseded();
        judge_reports();
      }
      watch_children();
      heed_losses(/*asks=*/true);
      return false;
    });
    const Roster roster = records_of(bundle);
    for (const auto& [rank, entry] : roster) {
      judge(rank, entry);
    }
    prepare(roster);
    store_.set(key("roster"), pack(bundle));
    if (confirmed(roster)) {
      store_.set(key("commit"), "");
      return peer_infos_of(roster);
    }
  }
}

/// False: another process has joined as one of the ranks since the roster was made.
bool Rendezvous::confirmed(const Roster& roster) {
  const bool all = wait(
      {key("confirmed")},
      [&](bool is_thorough) {
        if (is_thorough) {
          refuse_if_superseded();
          judge_reports();
        }
        watch_children();
        heed_losses(/*asks=*/true);
        return is_thorough && (store_.check(key("again")) || child_was_replaced(roster));
      },
      "ack", members());
  refuse_if_superseded();
  return all;
}

std::vector<std::string> Rendezvous::follow() {
  enter(store_.add(kEpochs, 0));
  // An epoch that was committed before this rank came is not its own.
  if (epoch_ == 0 || store_.check(key("commit"))) {
    await_opening();
  }
  for (;;) {
    if (auto peer_infos = take_part()) {
      return *peer_infos;
    }
    enter(store_.add(kEpochs, 0));
  }
}

void Rendezvous::enter(int64_t epoch) {
  epoch_ = epoch;
  news_ = 0;
  watched_.clear();
  reported_.clear();
  orphaned_.reset();
  if (options_.monitor != nullptr) {
    options_.monitor->forget();
  }
}

/// Until rank 0 opens an epoch after the present one.
void Rendezvous::await_opening() {
  const int64_t next = epoch_ + 1;
  const auto look = [this](bool is_thorough) {
    heed_losses(/*asks=*/false);
    return is_thorough && superseded();
  };
  const bool opened = wait({key_in(next, "open")}, look, "open", {});
  enter(opened ? next : store_.add(kEpochs, 0));
}

/// Nothing: there is a later epoch.
std::optional<std::vector<std::string>> Rendezvous::take_part() {
  was_orphaned_ = store_.check(key("orphaned"));
  const std::string own = own_entry();
  store_.set(key("join", options_.rank), own);
  has_joined_ = true;
  // Once there is a roster it is too late: it has this rank's predecessor, or none.
  const auto too_late = [this] {
    report_bad_children();
    return store_.check(key("roster"));
  };
  const auto look = [&](bool is_thorough) {
    if (is_thorough && (is_over() || too_late())) {
      return true;
    }
    watch_children();
    report_losses();
    return false;
  };
  if (!gather("join", own, look) && superseded()) {
    return std::nullopt;
  }
  if (!await("roster", [] {})) {
    return std::nullopt;
  }
  const Roster roster = records_of(unpack(store_.get({key("roster")}).front()));
  const auto entry = roster.find(options_.rank);
  const bool among = entry != roster.end() && entry->second.nonce == nonce_;
  if (among) {
    prepare(roster);
    count("ack", "confirmed");
  }
  const bool committed = await("commit", [&] {
    if (among && child_was_replaced(roster)) {
      store_.set(key("again"), "");
      spread_news();
    }
  });
  if (!committed) {
    return std::nullopt;
  }
  if (!among) {
    // Rank 0 was alive after this rank had joined, and goes on with another process.
    over_ = true;
    throw error(ErrorCode::kMismatch,
                entry != roster.end()
                    ? "another process joined as rank " + std::to_string(options_.rank) + " too"
                    : "rank 0 was told a world size of " + std::to_string(roster.size()) +
                          ", this rank " + std::to_string(options_.size));
  }
  return peer_infos_of(roster);
}

/// A seal or a roster that is wrong is found by all ranks once the epoch is committed.
void Rendezvous::prepare(const Roster& roster) const {
  if (!prepare_) return;
  std::vector<std::string> peer_infos;
  try {
    peer_infos = peer_infos_of(roster);
  } catch (const Error&) {
    return;
  }
  prepare_(peer_infos);
}

std::vector<std::string> Rendezvous::peer_infos_of(const Roster& roster) const {
  std::vector<std::string> peer_infos;
  for (const auto& [rank, entry] : roster) {
    if (rank != static_cast<int>(peer_infos.size())) {
      refuse_bytes();
    }
    peer_infos.push_back(entry.peer_info);
  }
  if (peer_infos.size() != static_cast<size_t>(options_.size)) {
    refuse_bytes();
  }
  return opened(kPeerInfo, peer_infos);
}

std::string Rendezvous::sealed(const std::string& what, const std::string& text) const {
  return publish(options_.secret, what,
                 {options_.rank, options_.size, options_.group, std::to_string(epoch_)}, text);
}

std::optional<std::string> Rendezvous::peer_info_of(int rank, const JoinRecord& record) const {
  try {
    return read_published(options_.secret, kPeerInfo,
                          {rank, options_.size, options_.group, std::to_string(epoch_)},
                          record.peer_info);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> Rendezvous::opened(const std::string& what,
                                            const std::vector<std::string>& sealed) const {
  return read_all_published(options_.secret, what,
                            {options_.rank, options_.size, options_.group, std::to_string(epoch_)},
                            sealed);
}

/// Waits for what rank 0 publishes next. False: there is a later epoch, and this one is dead.
bool Rendezvous::await(const std::string& what, const Check& also) {
  return wait(
      {key(what)},
      [&](bool is_thorough) {
        if (is_thorough) {
          also();
          if (is_over()) {
            return !store_.check(key(what));
          }
        }
        watch_children();
        report_losses();
        return false;
      },
      what == "commit" ? "ack" : "join", members());
}

/// True: there is a later epoch. Throws what rank 0 has told this rank.
bool Rendezvous::is_over() {
  check_for_orphans();
  const std::string told = key("told/" + nonce_);
  if (store_.check(told)) {
    raise(store_.get({told}).front());
  }
  return superseded();
}

bool Rendezvous::superseded() {
  return store_.add(kEpochs, 0) > epoch_;
}

void Rendezvous::refuse_if_superseded() {
  if (superseded()) {
    over_ = true;  // the others go on without this process
    throw error(ErrorCode::kMismatch, "another process joined as rank 0 after this one", 0);
  }
}

Error Rendezvous::error(ErrorCode code, const std::string& text, int rank) const {
  return Error(code,
               "rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.size) +
                   kCannot + options_.group + "': " + text,
               rank);
}

std::string Rendezvous::own_entry() const {
  return encode_entry(
      options_.rank, JoinRecord{nonce_, options_.size, {}, sealed(kPeerInfo, peer_info_)}.encode());
}

std::string Rendezvous::key(const std::string& what) const {
  return key_in(epoch_, what);
}

std::string Rendezvous::key_in(int64_t epoch, const std::string& what) {
  return "q7x2/" + std::to_string(epoch) + "/" + what;
}

std::string Rendezvous::key(const std::string& what, int rank) const {
  return key(what) + "/" + std::to_string(rank);
}

/// All ranks but the leader.
std::vector<int> Rendezvous::members() const {
  std::vector<int> ranks(static_cast<size_t>(options_.size) - 1);
  std::iota(ranks.begin(), ranks.end(), 1);
  return ranks;
}

}  // namespace q7x2
