// EpochBoard: what the ranks of a new group write in the store, and read there.
//
// A StoreBootstrap has *epochs*: attempts of the ranks to find each other. One key, the same for
// all epochs, has the state of the newest one (EpochState). It is replaced by comparing, so nobody
// replaces a state that it has not seen, and one question tells a waiting rank all that concerns
// it. Once an epoch is committed its state goes on under a key of its own: it does not end with the
// next epoch. All other keys carry the epoch, too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "transport/bootstrap/key_store.h"
#include "transport/peer/bootstrap_records.h"

namespace q7x2 {

class EpochBoard {
 public:
  using Phase = EpochState::Phase;

  explicit EpochBoard(KeyStore& store) : store_(store) {}

  KeyStore& store() { return store_; }
  /// The epoch of this rank; 0: none yet.
  int64_t epoch() const { return epoch_; }
  /// The state as it was seen last.
  const EpochState& state() const { return state_; }
  /// There is a later epoch than this rank's, as was seen last.
  bool is_superseded() const { return state_.epoch > epoch_; }

  /// One question.
  const EpochState& look();
  /// Begins the next epoch, which this rank enters.
  void open(Phase phase, const std::function<std::string(int64_t epoch)>& body);
  /// This rank is in the epoch of the state from now on.
  void enter() { epoch_ = state_.epoch; }
  /// The epoch is committed, as this rank has seen.
  void commit();
  /// False: the state is another one than was seen last, and is seen now.
  bool advance(Phase phase, const std::string& body, const std::string& what = "");
  /// The body of the state.
  std::string body();

  std::string key(const std::string& what) const;
  std::string key(const std::string& what, int rank) const;

 private:
  bool replace(EpochState next);

  KeyStore& store_;
  int64_t epoch_ = 0;
  std::string state_key_ = "q7x2/state";
  std::string text_;  // of the state; empty: there is none
  EpochState state_;
};

}  // namespace q7x2
