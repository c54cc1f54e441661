// How a rank that cannot make its group tells the others, and how they hear of it.
#include <algorithm>

#include "transport/rendezvous.h"
#include "transport/rendezvous_records.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Rank 0 often owns the store, so it stays until the others have read why it fails.
constexpr milliseconds kLinger{500};

}  // namespace

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
  // A rank that comes later would wait for this one, so this one waits for it. After a timeout, or
  // where the user interrupts, nobody is waited for.
  const int coming = joining_ ? coming_ : options_.size;
  const auto until = Clock::now() + (coming > 0 ? options_.patience : milliseconds(0));
  if (!joining_) {
    epoch_ = store_.add(kEpochs, 1);
    store_.set(key("open"), "");
  }
  std::vector<int> told;
  std::vector<std::string> left;
  for (int r = 1; r < coming; ++r) {
    left.push_back(key("join", r));
  }
  do {
    for (int r = 1; r < options_.size; ++r) {
      const bool new_here = std::find(told.begin(), told.end(), r) == told.end();
      if (new_here && store_.check(key("join", r))) {
        if (const auto entry = joined(r)) {
          store_.set(key("told/" + entry->nonce), encode_failure(error));
        }
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
  const std::string entry =
      encode_entry(options_.rank, JoinRecord{nonce_, options_.size, error, ""}.encode());
  int64_t told_in = 0;
  do {
    epoch_ = store_.add(kEpochs, 0);
    if (epoch_ > told_in) {
      store_.set(key("join", options_.rank), entry);
      store_.set(key("bad"), entry);
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

}  // namespace q7x2
