#include "transport/rendezvous.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "transport/card.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kEpochs = "q7x2/epochs";
constexpr const char* kCannot = " could not make the group '";
// Rank 0 often owns the store, so it stays until the others have read why it fails.
constexpr milliseconds kLinger{500};

std::string random_nonce() {
  std::random_device device;
  return std::to_string(static_cast<uint64_t>(device()) << 32 | device());
}

std::string encode_failure(const Error& failure) {
  return encode_list({std::to_string(static_cast<int>(failure.code())),
                      std::to_string(failure.rank()), failure.what()});
}

[[noreturn]] void refuse_bytes() {
  throw Error(ErrorCode::kMismatch,
              "the store holds something else than q7x2 writes: do all ranks run the same version, "
              "and use the backend q7x2 for this group?");
}

int64_t number(const std::string& text) {
  try {
    size_t used = 0;
    const int64_t value = std::stoll(text, &used);
    if (used == text.size()) {
      return value;
    }
  } catch (const std::logic_error&) {
  }
  refuse_bytes();
}

Error decode_failure(const std::string& bytes) {
  const std::vector<std::string> parts = decode_list(bytes);
  if (parts.size() != 3) {
    refuse_bytes();
  }
  const int64_t code = number(parts[0]);
  if (code < 0 || code > static_cast<int64_t>(ErrorCode::kInternal)) {
    refuse_bytes();
  }
  return Error(static_cast<ErrorCode>(code), parts[2], static_cast<int>(number(parts[1])));
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
    const std::vector<Entry> joined = gather();
    std::vector<std::string> roster{nonce_, mine};
    std::vector<std::string> cards{mine};
    for (const Entry& entry : joined) {
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
std::vector<Rendezvous::Entry> Rendezvous::gather() {
  const std::vector<std::string> keys = keys_of_members("join");
  wait(
      keys,
      [&] {
        refuse_if_superseded();
        for (int r = 1; r < options_.size; ++r) {
          if (store_.check(key("join", r))) {
            judge(r, decode(store_.get({key("join", r)}).front()));
          }
        }
        return false;
      },
      "join", members());
  std::vector<Entry> joined;
  for (const std::string& bytes : store_.get(keys)) {
    joined.push_back(decode(bytes));
    judge(static_cast<int>(joined.size()), joined.back());
  }
  return joined;
}

/// False: another process has joined as one of the ranks since the roster was made.
bool Rendezvous::confirmed(const std::vector<Entry>& joined) {
  const bool all = wait(
      keys_of_members("ack"),
      [&] {
        refuse_if_superseded();
        const std::vector<std::string> now = store_.get(keys_of_members("join"));
        bool changed = false;
        for (size_t i = 0; i < now.size(); ++i) {
          const Entry entry = decode(now[i]);
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
  store_.set(key("join", options_.rank), encode({nonce_, options_.size, std::nullopt, mine}));
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
void Rendezvous::judge(int rank, const Entry& entry) {
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

// ------------------------------------------------------------------------------------- to fail

void Rendezvous::fail(const Error& reason) noexcept {
  const bool alone = options_.size < 2 || options_.rank < 0 || options_.rank >= options_.size;
  if (over_ || alone) {
    return;
  }
  over_ = true;
  try {
    const bool complete = std::string_view(reason.what()).find(kCannot) != std::string_view::npos;
    const Error error =
        complete ? reason : this->error(reason.code(), reason.what(), options_.rank);
    if (committed_) {
      const std::string failed = key("failed");
      if (!store_.check(failed)) {
        store_.set(failed, encode_failure(error));
      }
      if (options_.rank == 0) {
        std::vector<int> others;
        for (int r = 1; r < options_.size; ++r) {
          if (r != error.rank()) {
            others.push_back(r);
          }
        }
        linger(others);
      }
    } else if (options_.rank == 0) {
      tell_members(error);
    } else {
      tell_leader(error);
    }
  } catch (const std::exception&) {
    // Without the store nobody can be told.
  }
}

void Rendezvous::tell_members(const Error& error) {
  const auto until = Clock::now() + (joining_ ? milliseconds(0) : options_.patience);
  if (!joining_) {
    epoch_ = store_.add(kEpochs, 1);
    store_.set(key("open"), "");
  }
  std::vector<int> told;
  std::vector<std::string> left = keys_of_members("join");
  do {
    for (int r = 1; r < options_.size; ++r) {
      const bool new_here = std::find(told.begin(), told.end(), r) == told.end();
      if (new_here && store_.check(key("join", r))) {
        const Entry entry = decode(store_.get({key("join", r)}).front());
        store_.set(key("told/" + entry.nonce), encode_failure(error));
        told.push_back(r);
        std::erase(left, key("join", r));
      }
    }
    if (left.empty()) {
      break;
    }
    store_.wait(left, std::min(options_.slice, milliseconds(50)));
    options_.check_interrupt();
  } while (Clock::now() < until && !superseded());
  std::erase(told, error.rank());
  linger(told);
}

void Rendezvous::tell_leader(const Error& error) {
  const auto until = Clock::now() + (joining_ ? milliseconds(0) : options_.patience);
  const std::string entry = encode({nonce_, options_.size, error, ""});
  int64_t told_in = 0;
  do {
    epoch_ = store_.add(kEpochs, 0);
    if (epoch_ > told_in) {
      store_.set(key("join", options_.rank), entry);
      told_in = epoch_;
    }
    options_.check_interrupt();
  } while (Clock::now() < until && !store_.wait({key("told/" + nonce_)}, options_.slice));
}

/// Stays until `ranks` have heard of the failure, for a short time.
void Rendezvous::linger(const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int r : ranks) {
    keys.push_back(key("heard", r));
  }
  if (!keys.empty()) {
    store_.wait(keys, kLinger);
  }
}

bool Rendezvous::look_for_failure(const Check& check) {
  if (store_.check(key("failed"))) {
    const std::string record = store_.get({key("failed")}).front();
    if (options_.rank == 0) {
      fail(decode_failure(record));
    }
    raise(record);
  }
  check();
  return false;
}

void Rendezvous::raise(const std::string& record) {
  over_ = true;
  store_.set(key("heard", options_.rank), "");
  throw Error(decode_failure(record));
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

std::string Rendezvous::encode(const Entry& entry) const {
  return encode_list({entry.nonce, std::to_string(entry.size),
                      entry.failure ? encode_failure(*entry.failure) : "", entry.card});
}

Rendezvous::Entry Rendezvous::decode(const std::string& bytes) const {
  const std::vector<std::string> parts = decode_list(bytes);
  if (parts.size() != 4) {
    refuse_bytes();
  }
  Entry entry;
  entry.nonce = parts[0];
  entry.size = static_cast<int>(number(parts[1]));
  if (!parts[2].empty()) {
    entry.failure = decode_failure(parts[2]);
  }
  entry.card = parts[3];
  return entry;
}

}  // namespace q7x2
