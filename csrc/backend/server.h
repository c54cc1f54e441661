// Server: a process of a job that has no rank, and adds up what ranks send it.
//
// It announces itself in the job's store (transport/bootstrap/server_roll.h), and looks for
// invitations. Each group that invites it has a thread of its own: it meets the ranks in a server
// group (backend/server_group_setup.h), and carries out rank 0's orders until the ranks have left
// (servers/server_group.h). Several groups are served at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/c10d_store.h"
#include "backend/torch_compat.h"
#include "servers/slot_pool.h"
#include "transport/bootstrap/server_roll.h"
#include "transport/group/group.h"
#include "transport/run/runtime.h"

namespace q7x2 {

class Server {
 public:
  /// Announces itself. `store`: the job's, with any prefix. `pool`: the memory for what ranks send
  /// it. Throws Error(kTransport) if the store does not answer, Error(kInvalidArgument) for a name
  /// that cannot be.
  Server(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, SlotPool pool);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int64_t number() const { return seat_->number(); }
  /// Looks for invitations, for so long. False: the store has gone, and with it the job. Throws
  /// Error(kMismatch) if the job has another secret.
  bool look(std::chrono::milliseconds duration);
  /// Leaves all groups in good order, and is not invited any more. Idempotent.
  void leave();
  /// What has happened since the last call, a sentence each, for a person.
  std::vector<std::string> take_news();

 private:
  /// One server group.
  struct Service {
    std::thread thread;
    std::shared_ptr<Group> group;  // null: it is being made
    std::atomic<bool> is_over{false};
    bool must_announce = false;  // it was given up, though it lives
  };

  /// `number`: this server's when it was invited.
  void serve(Service& service, const std::string& meeting, int64_t number);
  void meet(Service& service, const ServerMeeting& meeting);
  void end_services(bool all);
  void tell(std::string sentence);

  const std::shared_ptr<Runtime> runtime_;
  const c10::intrusive_ptr<c10d::Store> root_;
  const std::shared_ptr<SlotPool> pool_;
  C10dStore keys_;
  std::unique_ptr<ServerSeat> seat_;
  bool has_left_ = false;
  bool store_is_gone_ = false;
  std::list<std::unique_ptr<Service>> services_;

  std::mutex mutex_;  // guards the next two, and the groups and notes of services
  bool is_leaving_ = false;
  std::vector<std::string> news_;
};

}  // namespace q7x2
