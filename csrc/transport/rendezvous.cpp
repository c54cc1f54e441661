#include "transport/rendezvous.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "transport/card.h"
#include "transport/rendezvous_records.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::string random_nonce() {
  std::random_device device;
  return std::to_string(static_cast<uint64_t>(device()) << 32 | device());
}

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

Rendezvous::Rendezvous(KeyStore& store, Options options)
    : store_(store), options_(std::move(options)), nonce_(random_nonce()) {}

std::vector<std::string> Rendezvous::exchange(const std::string& what, const std::string& mine,
                                              const Check& check) {
  if (options_.size == 1) {
    return {mine};
  }
  if (!committed_) {
    return join(mine);
  }
  const std::string name = "x/" + what;
  store_.set(key(name, options_.rank), mine);
  std::vector<std::string> keys;
  std::vector<int> others;
  for (int r = 0; r < options_.size; ++r) {
    keys.push_back(key(name, r));
    if (r != options_.rank) {
      others.push_back(r);
    }
  }
  wait(
      keys, [&] { return look_for_failure(check); }, name, others);
  return store_.get(keys);
}

std::string Rendezvous::share(const std::string& what, const std::string* mine,
                              const Check& check) {
  const std::string name = "x/" + what;
  if (mine != nullptr) {
    if (options_.size > 1) {
      store_.set(key(name, 0), *mine);
    }
    return *mine;
  }
  wait({key(name, 0)}, [&] { return look_for_failure(check); }, name, {0});
  return store_.get({key(name, 0)}).front();
}

void Rendezvous::finish(const Check& check) {
  if (options_.size == 1) {
    return;
  }
  if (options_.rank != 0) {
    store_.set(key("done", options_.rank), "");
    return;
  }
  wait(
      keys_of_members("done"), [&] { return look_for_failure(check); }, "done", members());
}

// ------------------------------------------------------------------------------------- to join

std::vector<std::string> Rendezvous::join(const std::string& mine) {
  joining_ = true;
  std::vector<std::string> cards = options_.rank == 0 ? lead(mine) : follow(mine);
  committed_ = true;
  return cards;
}

std::vector<std::string> Rendezvous::lead(const std::string& mine) {
  for (;;) {
    epoch_ = store_.add(kEpochs, 1);
    store_.set(key("open"), "");
    const std::vector<JoinRecord> joined = gather();
    std::vector<std::string> roster{nonce_, mine};
    std::vector<std::string> cards{mine};
    for (const JoinRecord& entry : joined) {
      roster.push_back(entry.nonce);
      roster.push_back(entry.card);
      cards.push_back(entry.card);
    }
    store_.set(key("roster"), encode_list(roster));
    if (confirmed(joined)) {
      store_.set(key("commit"), "");
      return cards;
    }
  }
}

/// The entries of the other ranks.
std::vector<JoinRecord> Rendezvous::gather() {
  const std::vector<std::string> keys = keys_of_members("join");
  wait(
      keys,
      [&] {
        refuse_if_superseded();
        for (int r = 1; r < options_.size; ++r) {
          if (store_.check(key("join", r))) {
            judge(r, JoinRecord::decode(store_.get({key("join", r)}).front()));
          }
        }
        return false;
      },
      "join", members());
  std::vector<JoinRecord> joined;
  for (const std::string& bytes : store_.get(keys)) {
    joined.push_back(JoinRecord::decode(bytes));
    judge(static_cast<int>(joined.size()), joined.back());
  }
  return joined;
}

/// False: another process has joined as one of the ranks since the roster was made.
bool Rendezvous::confirmed(const std::vector<JoinRecord>& joined) {
  const bool all = wait(
      keys_of_members("ack"),
      [&] {
        refuse_if_superseded();
        const std::vector<std::string> now = store_.get(keys_of_members("join"));
        bool changed = false;
        for (size_t i = 0; i < now.size(); ++i) {
          const JoinRecord entry = JoinRecord::decode(now[i]);
          judge(static_cast<int>(i) + 1, entry);
          changed |= entry.nonce != joined[i].nonce;
        }
        return changed;
      },
      "ack", members());
  refuse_if_superseded();
  return all;
}

std::vector<std::string> Rendezvous::follow(const std::string& mine) {
  epoch_ = store_.add(kEpochs, 0);
  // An epoch that was committed before this rank came is not its own.
  if (epoch_ == 0 || store_.check(key("commit"))) {
    await_opening();
  }
  for (;;) {
    if (auto cards = take_part(mine)) {
      return *cards;
    }
    epoch_ = store_.add(kEpochs, 0);
  }
}

/// Until rank 0 opens an epoch after the present one.
void Rendezvous::await_opening() {
  const std::string next = "q7x2/" + std::to_string(epoch_ + 1) + "/open";
  wait({next}, [this] { return superseded(); }, "open", {});
  epoch_ = store_.add(kEpochs, 0);
}

/// Nothing: there is a later epoch.
std::optional<std::vector<std::string>> Rendezvous::take_part(const std::string& mine) {
  store_.set(key("join", options_.rank),
             JoinRecord{nonce_, options_.size, std::nullopt, mine}.encode());
  if (!await("roster")) {
    return std::nullopt;
  }
  const std::vector<std::string> roster = decode_list(store_.get({key("roster")}).front());
  const auto own = 2 * static_cast<size_t>(options_.rank);
  const bool among = own + 1 < roster.size() && roster[own] == nonce_;
  if (among) {
    store_.set(key("ack", options_.rank), "");
  }
  if (!await("commit")) {
    return std::nullopt;
  }
  if (!among) {
    // Rank 0 was alive after this rank had joined, and goes on with another process.
    over_ = true;
    throw error(ErrorCode::kMismatch,
                own + 1 < roster.size()
                    ? "another process joined as rank " + std::to_string(options_.rank) + " too"
                    : "rank 0 was told a world size of " + std::to_string(roster.size() / 2) +
                          ", this rank " + std::to_string(options_.size));
  }
  if (roster.size() != 2 * static_cast<size_t>(options_.size)) {
    refuse_bytes();
  }
  std::vector<std::string> cards;
  for (size_t i = 1; i < roster.size(); i += 2) {
    cards.push_back(roster[i]);
  }
  return cards;
}

/// Waits for what rank 0 publishes next. False: there is a later epoch, and this one is dead.
bool Rendezvous::await(const std::string& what) {
  const std::string told = key("told/" + nonce_);
  return wait(
      {key(what)},
      [&] {
        if (store_.check(told)) {
          raise(store_.get({told}).front());
        }
        return superseded() && !store_.check(key(what));
      },
      "join", members());
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

/// Throws where the entry of `rank` rules the group out.
void Rendezvous::judge(int rank, const JoinRecord& entry) {
  if (entry.failure) {
    throw Error(*entry.failure);
  }
  if (entry.size != options_.size) {
    throw error(ErrorCode::kMismatch,
                "rank " + std::to_string(rank) + " was told a world size of " +
                    std::to_string(entry.size) + ", rank 0 of " + std::to_string(options_.size),
                rank);
  }
}

// ------------------------------------------------------------------------------------- waiting

/// True when all `keys` exist; false if `look` says that it is pointless. Throws Error(kTimeout),
/// which names those of `ranks` whose key for `what` does not exist, or rank 0.
bool Rendezvous::wait(const std::vector<std::string>& keys, const Look& look,
                      const std::string& what, const std::vector<int>& ranks) {
  const auto deadline = Clock::now() + options_.timeout;
  while (!store_.wait(keys, options_.slice)) {
    options_.check_interrupt();
    if (look()) {
      return false;
    }
    if (Clock::now() < deadline) {
      continue;
    }
    std::vector<int> missing;
    for (const int r : ranks) {
      if (r != options_.rank && !store_.check(key(what, r))) {
        missing.push_back(r);
      }
    }
    if (missing.empty()) {
      missing.push_back(0);
    }
    std::string text = list_ranks(missing);
    if (committed_) {
      text += " joined, but did not go on";
    } else if (what == "ack") {
      text += " joined, but did not confirm it";
    } else {
      text += " did not join";
    }
    text += " within the timeout of " + std::to_string(options_.timeout.count()) + " ms";
    for (const int r : missing) {
      text += options_.explain_missing(r);
    }
    throw error(ErrorCode::kTimeout, text, missing.front());
  }
  return true;
}

Error Rendezvous::error(ErrorCode code, const std::string& text, int rank) const {
  return Error(code,
               "rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.size) +
                   kCannot + options_.group + "': " + text,
               rank);
}

std::string Rendezvous::key(const std::string& what) const {
  return "q7x2/" + std::to_string(epoch_) + "/" + what;
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

std::vector<std::string> Rendezvous::keys_of_members(const std::string& what) const {
  std::vector<std::string> keys;
  for (const int r : members()) {
    keys.push_back(key(what, r));
  }
  return keys;
}

}  // namespace q7x2
