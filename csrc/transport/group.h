// Group: the ranks of one process group, as this rank reaches them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/card.h"
#include "transport/control.h"
#include "transport/task.h"

namespace q7x2 {

struct Peer;

/// Gives this rank's card to all ranks and returns everybody's, by rank. Blocks, with a deadline of
/// its own.
using ExchangeCards = std::function<std::vector<std::string>(const std::string& mine)>;

class Group {
 public:
  /// Registers a slot, exchanges cards once, and knows all peers afterwards; connects on first use,
  /// or at once with `eager`.
  static std::shared_ptr<Group> create(Engine& engine, int rank, int world_size,
                                       const std::string& name, const ExchangeCards& exchange,
                                       bool eager);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& name() const { return name_; }
  Engine& engine() const { return engine_; }
  /// Whether `rank` can share memory with this one.
  bool same_host(int rank) const;
  /// Ranks on this host, this one included.
  int ranks_on_host() const;
  bool one_host() const { return ranks_on_host() == world_size_; }

  // Any thread; these take the engine's lock.

  /// Connects to every peer.
  void connect_all();
  /// Transports of the connection to `rank`, for example {"posix"}; empty before first use.
  std::vector<std::string> transports(int rank);
  /// Fails everything in progress and to come, here and at all other ranks, with `error`.
  void abort(const Error& error);
  /// Leaves in good order: what is still in progress here fails, peers are told. Idempotent.
  void leave();
  /// What is in progress: everything, and the collectives only.
  std::vector<std::shared_ptr<Task>> tasks();
  std::vector<std::shared_ptr<Task>> collectives();
  /// The error that ended the group, if any.
  std::optional<Error> error();

  // For tasks, under the engine's lock. Completion comes to Task::completed, never from inside
  // these calls.

  /// `tag`: see transport/tag.h; its slot is filled in here.
  void send(Task& task, uint32_t token, int destination, uint64_t tag, const void* data,
            size_t length);
  /// `source` -1: from any. `tag` must carry this rank's slot.
  void receive(Task& task, uint32_t token, int source, uint64_t tag, uint64_t mask, void* data,
               size_t length);
  int slot() const { return slot_; }
  int slot_at(int rank) const { return cards_[static_cast<size_t>(rank)].slot; }
  /// Ends the group here and tells the others, under the lock.
  void fail(const Error& error);
  /// "rank 3 (pid 41 on host a)".
  std::string describe(int rank) const;

 private:
  friend class Engine;
  friend class Task;

  Group(Engine& engine, int rank, int world_size, std::string name);

  // Under the engine's lock.
  void submit(const std::shared_ptr<Task>& task);
  void begin(const std::shared_ptr<Task>& task);
  void task_done(Task& task);
  void fail_tasks(const Error& error);
  void handle(const Control& control);
  void request_failed(Task& task, int rank, ucs_status_t status);
  void peer_failed(int rank, const std::string& reason);
  void peer_left(int rank);
  bool ensure_connected(int rank);
  Control control_to(int rank, ControlType type) const;
  int rank_of(const Peer& peer) const;
  Error left_error(int rank, const Task& task) const;
  std::optional<Error> leftover(uint64_t oldest);
  void check_leftovers();

  Engine& engine_;
  const int rank_;
  const int world_size_;
  const std::string name_;
  int slot_ = -1;
  std::vector<Card> cards_;     // by rank
  std::vector<Peer*> peers_;    // by rank; null for this rank. Owned by the engine
  std::vector<bool> departed_;  // by rank: said goodbye

  uint64_t sequence_ = 0;
  std::optional<Error> error_;
  bool closed_ = false;
  int running_ = 0;                            // tasks that take turns and have started
  std::deque<std::shared_ptr<Task>> waiting_;  // for their turn
};

}  // namespace q7x2
